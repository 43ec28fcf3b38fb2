#pragma once

#include <cuda_runtime_api.h>

#include "attention/kernels/hopper/launch/launch_options.hpp"
#include "attention/kernels/hopper/launch/tile_choice.hpp"
#include "attention/kernels/hopper/schedule/dilation_classes.hpp"

/// Starts the kernels on a stream. Functions return what CUDA says to it.
namespace annulus::attention::hopper {

/// T is bfloat16 or float16, head_dim and form as with_tiles() gives them. `classes`:
/// dilation_classes() of mask and positions.
template <int head_dim, TileForm form, class T>
cudaError_t launch_forward(const gpu::ForwardProblem<T>& problem, const DilationClasses& classes,
                           const LaunchOptions& options, void* workspace, cudaStream_t stream);
template <int head_dim, TileForm form, class T>
cudaError_t launch_backward(const gpu::BackwardProblem<T>& problem, const DilationClasses& classes,
                            const LaunchOptions& options, void* workspace, cudaStream_t stream);

}  // namespace annulus::attention::hopper
