// The text of a page whose contrast with what lies behind it is below `least`, by WCAG 2's formula:
// [text, ratio, colour, background].
(least) => {
  const pixel = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    pixel.clearRect(0, 0, 1, 1);
    pixel.fillStyle = colour;
    pixel.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pixel.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], below) =>
    [[r, 0], [g, 1], [b, 2]].map(([channel, i]) => a * channel + (1 - a) * below[i]);
  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((channel) => {
      const c = channel / 255;
      return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    if (!element) return [255, 255, 255];
    const own = rgba(getComputedStyle(element).backgroundColor);
    return own[3] === 1 ? own.slice(0, 3) : over(own, behind(element.parentElement));
  };
  const found = [];
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode.textContent.trim();
    const element = texts.currentNode.parentElement;
    if (!text || element.closest("script, style, noscript") || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const below = behind(element.closest("svg")?.parentElement ?? element);
    const drawn = element.closest("svg") ? style.fill : style.color;
    const above = over(rgba(drawn), below);
    const [dark, light] = [luminance(above), luminance(below)].sort((a, b) => a - b);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < least) found.push([text.slice(0, 40), ratio.toFixed(2), drawn, `${below}`]);
  }
  return found;
}
