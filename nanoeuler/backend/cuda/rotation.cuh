// The rotation of a pair of elements by its position's angle φ (Su et al. 2021, eq. 34), or by −φ
// where `direction` is −1:
//
//   (a, b) → (a cos φ − b sin φ,  b cos φ + a sin φ)
//
// A pair that is handed over as (b, a) and comes back so is rotated by −φ, too.

__device__ __forceinline__ float2 rotated(
    float a, float b, float cos, float sin, float direction = 1.0f) {
    return make_float2(a * cos - b * direction * sin, b * cos + a * direction * sin);
}
