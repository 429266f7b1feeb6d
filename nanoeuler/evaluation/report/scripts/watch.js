// The page of a run that is still training reads itself again at intervals, but not while a chart
// or a button of it is in use.
"use strict";

{
  const { seconds } = document.querySelector("meta[name='reload']").dataset;
  const inUse = () => document.querySelector(".tip:not([hidden]), :focus-visible");
  setInterval(() => inUse() || location.reload(), 1000 * seconds);
}
