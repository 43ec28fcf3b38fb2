#pragma once

#include <Kokkos_Core.hpp>
#include <span>
#include <utility>

#include <annulus/attention/executor/attention.hpp>
#include <annulus/base/error.hpp>
#include <annulus/training/run/config.hpp>

#include "base/kokkos/execution/region.hpp"
#include "training/data/dataset.hpp"
#include "training/run/sequence_plans.hpp"

namespace annulus::training {

/// The kernel of attention.kernel. Throws Error where a run that computes on Exec in T can never use it.
template <class Exec, class T>
attention::Kernel kernel_of(const Config& config) {
  const std::string& name = config.attention.kernel;
  const attention::Kernel kernel = attention::parse_kernel(name, "attention.kernel =");
  constexpr bool host = std::is_same_v<Exec, HostExec>;
  require(!host || !on_tensor_cores(kernel),
          "attention.kernel = '{}' is for GPUs, but this run computes on the CPU (run.device = '{}'): use "
          "automatic",
          name, config.run.device);
  require(host || kernel != attention::Kernel::host_simd,
          "attention.kernel = '{}' is for the CPU, but this run computes on a GPU (run.device = '{}'): use "
          "automatic",
          name, config.run.device);
  require(sizeof(T) == 2 || !on_tensor_cores(kernel),
          "attention.kernel = '{}' takes 16-bit types: set train.dtype = 'bf16', or use automatic", name);
  return kernel;
}

/// The distributed attention of a run. Its plans are made, and what runs is proved, anew where the documents
/// of a pass' sequences change them: wrong plans end the run before the optimizer step that they are for.
template <class Exec, class T>
class SequenceAttention {
 public:
  using Attention = executor::Attention<Exec, T>;

  SequenceAttention(const Exec& exec, comm::Communicator& context, const Config& config, SequencePlans plans)
      : kernel_(kernel_of<Exec, T>(config)),
        runs_(attention::kernel_for<Exec, T>(config.model.head_dim, kernel_)),
        warning_(attention::slow_kernel_warning<Exec, T>(config.model.head_dim, kernel_)),
        plans_(with_recompute(std::move(plans), config)),
        attention_(make(exec, context, config)) {}

  /// For the sequences of a pass.
  Attention& for_pass(const Exec& exec, std::span<const data::Sequence> sequences) {
    const Kokkos::Timer timer;
    bool changed = false;
    for (int i = 0; i < plans_.sequences(); ++i)
      changed |= plans_.follow(i, sequences[static_cast<std::size_t>(i)].document_starts);
    if (changed) {
      const Region region("annulus::training::plan");
      attention_.set_plans(exec, plans_.make());
      planning_seconds_ += timer.seconds();
    }
    return attention_;
  }

  const SequencePlans& plans() const { return plans_; }
  /// What for_pass gives.
  Attention& attention() { return attention_; }

  /// Of the local attention: what attention.kernel stands for.
  attention::Kernel kernel() const { return runs_; }
  /// Of a slow kernel (attention::slow_kernel_warning); empty without.
  const std::string& warning() const { return warning_; }

  void reset_times() {
    attention_.reset_times();
    planning_seconds_ = 0;
  }
  double exposed_communication_seconds() const { return attention_.times().exposed_communication; }
  /// The share of the time of its plan steps in which it computes; 1 where nothing takes time.
  double computation_ratio() const {
    const typename Attention::Times times = attention_.times();
    const double all = times.computing + times.exposed_communication;
    return all > 0 ? times.computing / all : 1;
  }
  /// Spent by for_pass on new masks and plans, and on their proof. They count on every rank alike: all
  /// agree on the plans before they go on.
  double planning_seconds() const { return planning_seconds_; }

 private:
  static SequencePlans with_recompute(SequencePlans plans, const Config& config) {
    plans.recompute_before(config.activations().early_positions);
    return plans;
  }
  Attention make(const Exec& exec, comm::Communicator& context, const Config& config) const {
    executor::Settings settings;
    settings.kernel = kernel_;
    settings.kernel.deterministic = config.attention.deterministic;
    settings.overlap = config.attention.overlap;
    settings.stall_timeout = config.stall_timeout();
    return Attention(exec, context, plans_.make(), settings);
  }

  attention::Kernel kernel_, runs_;
  std::string warning_;
  SequencePlans plans_;
  Attention attention_;
  double planning_seconds_ = 0;
};

}  // namespace annulus::training
