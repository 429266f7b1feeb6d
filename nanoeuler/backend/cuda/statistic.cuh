// The type in which the norms of training compute 1/r.
//
// Float32 activations get 1/r as from float64: an error of 1/r is that of a whole row, so that it
// does not average out in the products that follow.
constexpr bool EXACT = sizeof(ACTIVATION) == 4;
template <bool>
struct Statistic {
    using type = float;
};
template <>
struct Statistic<true> {
    using type = double;
};
using statistic = Statistic<EXACT>::type;
