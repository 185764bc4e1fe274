// All kernels of the prover. `cargo xtask ptx` makes kernels.ptx of them.
#include "product.cuh"
#include "rows.cuh"
#include "tree.cuh"
#include "walk.cuh"
