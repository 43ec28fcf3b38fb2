#include "training/run/planner/rehearsal.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include <annulus/training/run/trainer.hpp>

#include "attention/comm/watchdog.hpp"
#include "base/kokkos/execution/region.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "training/data/dataset.hpp"
#include "training/run/state/learner.hpp"

namespace annulus::training {

namespace {

/// Rows of a rank: enough for the kernels of long sequences.
constexpr std::int64_t rehearsed_rows = 1024;
/// The LM head's share of the state is to be small beside that of the layer.
constexpr std::int64_t rehearsed_vocabulary = 1024;

/// Takes no more memory than `config` with any values of memory.*.
Config rehearsed(const Config& config, int context) {
  Config small = config;
  small.model.layers = 1;
  small.model.pattern.clear();
  small.model.vocabulary = std::min<std::int64_t>(config.model.vocabulary, rehearsed_vocabulary);
  small.data.sequence_length = std::min(config.data.sequence_length, context * rehearsed_rows);
  small.attention.sparsity.clear();
  small.sparsity = {};
  small.memory = {.recompute = {"full"},
                  .chunk_rows = config.memory.chunk_rows,
                  .lm_head_rows = config.memory.lm_head_rows,
                  .offload_optimizer = config.memory.offload_optimizer};
  small.train.micro_batches = small.train.sequences_per_pass = 1;
  return small;
}

}  // namespace

std::int64_t rehearse(comm::Communicator& world, comm::Communicator& context, const Config& config,
                      ResolvedAttention attention) {
  const Region region("annulus::training::rehearse");
  const comm::Watchdog::ActivityScope activity(world.watchdog(),
                                               "a step of one layer, which tells what libraries take");
  const ResolvedRun run =
      resolve(rehearsed(config, context.size()), world.topology(), computes_on_gpu(config));
  attention.sequences = attention.problem.batch = 1;
  attention.follows_documents = false;
  attention.masks = {Mask::parse("causal", run.step.tokens)};
  attention.mask_of_layer = {0};
  attention.problem = attention.arranged_for(attention.masks);
  std::int64_t libraries = 0;
  {
    const std::unique_ptr<Learner> learner =
        make_learner(world, context, run, SequencePlans(context.rank(), std::move(attention)));
    data::Sequence sequence;
    sequence.rows = learner->plans().rows();
    sequence.tokens.assign(static_cast<std::size_t>(sequence.rows.count), 0);
    sequence.targets = sequence.tokens;
    sequence.document_starts = {0};
    learner->state().initialize(static_cast<std::uint64_t>(config.run.seed));
    learner->update(1, config.train.min_lr, {&sequence, 1}, false, nullptr, nullptr);
    libraries = library_memory();
  }
  trim_device_pool();  // the run's arrays do not find gaps that these have left
  return libraries;
}

}  // namespace annulus::training
