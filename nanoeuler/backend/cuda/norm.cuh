// The norm in front of a decoded token's product: w · x / √(mean(x²) + ε), or of a GPT-2 (GPT2)
// w · (x − m) / √(mean((x − m)²) + ε) + b with m = mean(x).
struct Norm {
    const float* weight;
    const float* bias;  // null without GPT2
    float epsilon;
};
