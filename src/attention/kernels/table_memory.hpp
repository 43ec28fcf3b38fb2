#pragma once

#include <cstdint>

#include <annulus/attention/kernels/local.hpp>
#include <annulus/base/kokkos/tensor.hpp>

/// What kernels keep in device memory beside the arrays of a call, from one call to the next.
namespace annulus::attention {

/// Bytes of the tables that a forward pass needs on an H100 or H200: those of the kernel hopper where
/// `options` stand for it, 0 otherwise. No array is read: q, k and v may have no data, and what the mask and
/// kv_listed point to may be of any address but null.
template <class T>
std::int64_t forward_tables(const Operands<T, HostExec>& in, const KernelOptions& options);
/// Bytes of the tables that a backward pass needs on an H100 or H200, under the rules of forward_tables.
template <class T>
std::int64_t backward_tables(const Operands<T, HostExec>& in, const KernelOptions& options);

}  // namespace annulus::attention
