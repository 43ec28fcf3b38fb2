#pragma once

#include <string>
#include <vector>

#include <annulus/attention/plan/plan.hpp>

/// Parts of a plan as text, for printing and for what validator, executor and profiler say.
namespace annulus::plan {

std::string describe_slot(Slot slot);            ///< "local" or "slot 2"
std::string describe(const TensorSlice& slice);  ///< "k[3] rows 0:16 heads 0:2"
/// "k, v[3] rows 0:16 heads 0:2, dq[1] …": those that differ from the next one in their tensor alone are
/// joined.
std::string describe(const std::vector<TensorSlice>& slices);
std::string describe(const Compute& compute);     ///< "compute q[1] rows 0:16 x kv[0] rows 0:16 heads 0:4"
std::string describe(const Clear& clear);         ///< "clear dq[3] rows 0:16 heads 0:2 in slot 1"
std::string describe_send(const Transfer& send);  ///< "send k[3] rows … from slot 1 to rank 2"
std::string describe_receive(const Transfer& receive);

}  // namespace annulus::plan
