#include "eval/next_token.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include <annulus/attention/kernels/local.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/kokkos/queue.hpp>
#include <annulus/training/run/device.hpp>

#include "base/kokkos/execution/own_instance.hpp"
#include "base/kokkos/memory/memory.hpp"
#include "training/io/progress_line.hpp"
#include "training/run/passes/sequence_model.hpp"
#include "training/run/state/initial_weights/model_from.hpp"

namespace annulus::eval {

namespace {

template <class Exec, class T>
class NextTokenOn final : public NextToken {
 public:
  NextTokenOn(comm::Communicator& one_rank, const training::WeightSource& weights,
              const training::ResolvedRun& run, const training::SequencePlans& plans)
      : kernel_(
            attention::kernel_for<Exec, T>(run.step.model.padded_head_dim(), run.attention.kernel.kernel)),
        weights_(Owned<Array1<T, Exec>>::uninitialized(exec_, MemoryCategory::parameters,
                                                       "annulus::eval::weights", weights.map().size())),
        model_(exec_, one_rank, run, run.step.activations.without_backward(), plans, nullptr),
        access_(model_.model.parameter_map(), *weights_),
        tokens_(static_cast<std::size_t>(plans.rows().count)),
        targets_(tokens_.size(), data::ignored_target) {
    read(weights);
  }

  std::string description() const override {
    return fmt::format("{} in {}, attention kernel {}", Exec::name(), name_of(dtype_of<T>), name_of(kernel_));
  }

  void logits(std::span<const std::int32_t> prefix, std::span<float> logits) override {
    require(!prefix.empty() && prefix.size() <= tokens_.size(),
            "a prefix has 1 to {} tokens here, this one has {}", tokens_.size(), prefix.size());
    // What stands behind the prefix changes nothing: no token sees a later one.
    std::ranges::fill(std::ranges::copy(prefix, tokens_.begin()).out, tokens_.end(), 0);
    model_.model.logits(exec_, {.tokens = tokens_, .targets = targets_},
                        {.attention = model_.attention.attention(), .parameters = access_},
                        std::ssize(prefix) - 1, logits);
  }

 private:
  void read(const training::WeightSource& weights) {
    const std::int64_t size = weights.map().size(), element = sizeof(float);
    io::ProgressLine line("loading the weights", size * element);
    const Queue queue(exec_);
    std::vector<T> rounded;
    weights.read(0, size, [&](std::int64_t at, std::span<const float> values) {
      rounded.resize(values.size());
      std::ranges::transform(values, rounded.begin(), [](float value) { return T(value); });
      queue.copy_from_host((*weights_).data() + at, rounded.data(), rounded.size() * sizeof(T));
      queue.fence("annulus::eval: the weights on the host are overwritten");
      line.show((at + std::ssize(values)) * element);
    });
  }

  const OwnInstance<Exec> instance_;
  const Exec& exec_ = *instance_;
  const attention::Kernel kernel_;
  Owned<Array1<T, Exec>> weights_;  // (parameters)
  training::SequenceModel<Exec, T> model_;
  model::WholeWeights<Exec, T> access_;
  std::vector<std::int32_t> tokens_, targets_;  // of a pass
};

template <class Exec>
std::unique_ptr<NextToken> make_on(comm::Communicator& one_rank, const training::WeightSource& weights,
                                   const training::ResolvedRun& run, const training::SequencePlans& plans) {
  if (run.step.type == DType::bf16)
    return std::make_unique<NextTokenOn<Exec, bfloat16>>(one_rank, weights, run, plans);
  return std::make_unique<NextTokenOn<Exec, float>>(one_rank, weights, run, plans);
}

}  // namespace

std::unique_ptr<NextToken> make_next_token(comm::Communicator& one_rank,
                                           const training::WeightSource& weights,
                                           const ModelChoices& choices) {
  training::Config config = training::config_of(weights.model());
  config.data.sequence_length = choices.tokens;
  config.run.device = choices.device;
  config.train.dtype = choices.dtype.empty() ? weights.model().dtype : choices.dtype;
  config.attention.layout = "contiguous";
  config.memory.lm_head_rows = 1;  // logits of one row are asked for
  require(training::mask_of(config, choices.tokens).rule().right == 0,
          "the model was trained with attention.mask = '{}', which shows tokens the later ones: it cannot "
          "tell the next token of a text that ends",
          config.attention.mask);
  bool on_gpu = false;
  try {
    on_gpu = training::computes_on_gpu(config);
  } catch (const Error& error) {
    fail("--device {}: {}", choices.device, error.what());
  }
  const training::ResolvedRun run = training::resolve(config, one_rank.topology(), on_gpu);
  const training::SequencePlans plans(
      one_rank.rank(),
      training::resolve_attention(config, one_rank.topology(), training::read_attention_inputs(config)));
  return on_gpu ? make_on<DeviceExec>(one_rank, weights, run, plans)
                : make_on<HostExec>(one_rank, weights, run, plans);
}

}  // namespace annulus::eval
