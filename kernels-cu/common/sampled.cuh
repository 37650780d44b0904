// The tokens that steps sampled, where the next step finds them: two rows of ids, one for the steps of
// each parity.
#pragma once

#include <stdint.h>

namespace ottava {

// In place of a token's id: the number of an output of the step before, whose token it is.
constexpr uint32_t FED = 0x80000000u;
// In place of an id: none could be sampled.
constexpr uint32_t NO_TOKEN = 0xffffffffu;

// Mirrored by `backend::cuda::params::Sampled`.
struct Sampled {
    uint32_t* ids;     // [2, outputs_max]
    uint32_t outputs_max;
    uint32_t unused;
};
static_assert(sizeof(Sampled) == 16, "the host's struct has no other padding");

// Which of the two rows is this step's.
__device__ __forceinline__ uint32_t parity_of(const uint32_t* counts) { return counts[3]; }

// A row's token: its own, or what the step before sampled. The host has checked ids and outputs; where
// none could be sampled, any token will do, since the host drops the row.
__device__ __forceinline__ uint32_t token_of(uint32_t token, const Sampled& sampled, const uint32_t* counts,
                                             uint32_t vocabulary) {
    if (token & FED) token = sampled.ids[(1 - parity_of(counts)) * sampled.outputs_max + (token & ~FED)];
    return token < vocabulary ? token : 0;
}

}  // namespace ottava
