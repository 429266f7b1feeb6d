// The scalars of an optimizer step, in double, which stay on the device: update.cu computes them.
// UPDATE counts from 1.

enum Scalar { FINITE, CLIPPING, RATE, UPDATE, SCALARS };
static_assert(SCALARS == STEP_SCALARS, "scalars of a step");
