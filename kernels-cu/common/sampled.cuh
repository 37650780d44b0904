// Sampled tokens for the next step: two rows of ids, one per parity of steps.
#pragma once

#include <stdint.h>

namespace ottava {

// Flag in place of a token's id: the rest is the index of an output of the previous step, the token's source.
constexpr uint32_t FED = 0x80000000u;
// In place of an id: no token could be sampled.
constexpr uint32_t NO_TOKEN = 0xffffffffu;

// Mirrored by `backend::cuda::params::Sampled`.
struct Sampled {
    uint32_t* ids;     // [2, outputs_max]
    uint32_t outputs_max;
    uint32_t unused;
};
static_assert(sizeof(Sampled) == 16, "the host's struct has no other padding");

// Index of this step's row of ids.
__device__ __forceinline__ uint32_t parity_of(const uint32_t* counts) { return counts[3]; }

// A row's token: its own, or one sampled in the previous step. The host has checked ids and outputs. If no
// token could be sampled, any id may be returned, because the host drops the row.
__device__ __forceinline__ uint32_t token_of(uint32_t token, const Sampled& sampled, const uint32_t* counts,
                                             uint32_t vocabulary) {
    if (token & FED) token = sampled.ids[(1 - parity_of(counts)) * sampled.outputs_max + (token & ~FED)];
    return token < vocabulary ? token : 0;
}

}  // namespace ottava
