// The scalars of an optimizer step, which stay on the device: adamw.cu computes them.

enum Scalar { FINITE, CLIPPING, RATE, CORRECTION, UNCORRECTED_RATE, SCALARS };
static_assert(SCALARS == STEP_SCALARS, "scalars of a step");
