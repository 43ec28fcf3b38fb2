#pragma once

#include <map>
#include <memory>
#include <random>

#include <annulus/attention/comm/loopback.hpp>
#include <annulus/attention/plan/schedules.hpp>

#include "base/kokkos/cast.hpp"
#include "support/exec.hpp"
#include "training/model/model.hpp"
#include "training/model/variant.hpp"

namespace annulus::test {

/// Gradients hold NaN until the model sets them: it is told so where it first asks for those of a unit.
template <class Exec, class T>
class FreshGradients final : public model::WholeParameters<Exec, T> {
 public:
  FreshGradients(const model::ParameterMap& map, const Array1<const T, Exec>& weights,
                 const Array1<float, Exec>& gradients)
      : model::WholeParameters<Exec, T>(map, weights, gradients), asked_(map.units().size(), false) {}
  model::UnitGradient<Exec> gradients(const Exec& exec, int unit) override {
    model::UnitGradient<Exec> gradient = model::WholeParameters<Exec, T>::gradients(exec, unit);
    gradient.fresh = !asked_[static_cast<std::size_t>(unit)];
    asked_[static_cast<std::size_t>(unit)] = true;
    if (gradient.fresh) Kokkos::deep_copy(exec, gradient.elements, std::numeric_limits<float>::quiet_NaN());
    return gradient;
  }

 private:
  std::vector<bool> asked_;
};

/// A small model on a short random sequence, and how one group of ranks works on it.
struct ModelProblem {
  model::Config config;
  Mask mask;
  std::vector<std::int32_t> tokens, targets;  // of the whole sequence
  Array1<float, HostExec> parameters;
  model::ActivationOptions activations;
  bool fresh_gradients = false;     // of FreshGradients instead of zeros
  std::string sparsity;             // of sparsity::PatternOptions; empty: dense
  std::vector<bool> sparse_layers;  // of all layers, with `sparsity`

  ModelProblem(std::int64_t length, const std::string& mask_text, bool tied = false, int kv_heads = 1,
               int layers = 2, const Variant& variant = {})
      : mask(Mask::parse(mask_text, length)) {
    config = {.vocabulary = 37,
              .layers = layers,
              .hidden = 24,
              .heads = 2,
              .kv_heads = kv_heads,
              .head_dim = 16,
              .ffn = 40,
              .tied = tied};
    variant.set(config);
    std::mt19937 random(7);
    for (std::int64_t t = 0; t < length; ++t) {
      tokens.push_back(static_cast<std::int32_t>(random() % 37));
      targets.push_back(t % 5 == 3 ? -1 : static_cast<std::int32_t>(random() % 37));
    }
    const model::ParameterMap map(config);
    parameters = Array1<float, HostExec>("parameters", map.size());
    // Larger than training's initial values, so that no gradient is lost in rounding; gains away from one,
    // biases away from zero.
    std::normal_distribution<float> normal(0.0f, 0.25f);
    for (const auto& parameter : map.all())
      for (std::int64_t i = 0; i < parameter.size(); ++i)
        parameters(parameter.offset + i) = normal(random) + parameter.init_mean;
  }

  template <class T>
  static Array1<T, TestExec> in_type(const TestExec& exec, const Array1<float, TestExec>& values) {
    if constexpr (std::is_same_v<T, float>) {
      return values;
    } else {
      const Array1<T, TestExec> rounded("rounded", values.extent(0));
      cast<TestExec, T, float>(exec, values, rounded);
      return rounded;
    }
  }

  /// What its attention computes, for `batch` sequences in T.
  template <class T>
  plan::Problem attention_on(const Topology& topology, const std::string& layout, int batch) const {
    plan::Problem problem;
    problem.topology = topology;
    problem.layout = Layout::parse(layout);
    problem.mask = mask;
    problem.heads = config.heads;
    problem.kv_heads = config.kv_heads;
    problem.head_dim = config.padded_head_dim();
    problem.batch = batch;
    problem.dtype = dtype_of<T>;
    return problem;
  }

  /// Plans of both passes, and of the early positions.
  executor::Plans plans_for(const plan::Problem& problem, const std::string& schedule) const {
    executor::Plans plans{plan::make_plan(schedule, problem, plan::Pass::forward),
                          plan::make_plan(schedule, problem, plan::Pass::backward)};
    if (activations.early_positions > 0) {
      plan::Problem early = problem;
      early.positions = activations.early_positions;
      plans.recompute = plan::make_plan(schedule, early, plan::Pass::forward);
    }
    return plans;
  }

  struct Result {
    double loss = 0;               // sum over all ranks
    std::int64_t valid = 0;        // of all ranks
    std::vector<float> gradients;  // sum over all ranks
    model::AttentionCalls calls;   // of training
  };

  /// Sequences of a pass: number n has all ids of this problem's, raised by n.
  struct Sequences {
    int first = 0, count = 1;
  };

  /// Loss and gradients of Σ cross-entropy, computed on TestExec in T; the same on every rank.
  /// `recorder`, unless null, gets the tensors of a pass.
  template <class T = float>
  Result run(comm::Communicator& communicator, const std::string& layout, const std::string& schedule,
             const Sequences& sequences = {}, dump::Recorder* recorder = nullptr) const {
    using Exec = TestExec;
    const Exec exec = rank_instance();
    const plan::Problem problem = attention_on<T>(communicator.topology(), layout, sequences.count);
    std::map<std::string, std::unique_ptr<executor::Attention<Exec, T>>> attentions;  // by mask of layers
    std::vector<executor::Attention<Exec, T>*> attention_of_layer;
    for (const model::LayerKind& kind : config.kinds()) {
      auto& attention = attentions[kind.mask];
      if (attention == nullptr) {
        plan::Problem of_kind = problem;
        if (!kind.mask.empty()) of_kind.mask = Mask::parse(kind.mask, mask.tokens());
        const std::vector plans{plans_for(of_kind, schedule)};
        attention = attention_of_layer.empty()
                        ? std::make_unique<executor::Attention<Exec, T>>(exec, communicator, plans)
                        : std::make_unique<executor::Attention<Exec, T>>(exec, plans, *attention_of_layer[0]);
      }
      attention_of_layer.push_back(attention.get());
    }
    const PositionMap rows = problem.shard(communicator.rank());
    std::vector<std::int32_t> my_tokens, my_targets;
    for (int n = sequences.first; n < sequences.first + sequences.count; ++n) {
      const auto raised = [&](std::int32_t id) {
        return n > 0 && id >= 0 ? (id + n) % static_cast<std::int32_t>(config.vocabulary) : id;
      };
      for (std::int64_t i = 0; i < rows.count; ++i) {
        my_tokens.push_back(raised(tokens[static_cast<std::size_t>(rows(i))]));
        my_targets.push_back(raised(targets[static_cast<std::size_t>(rows(i))]));
      }
    }
    const Array1<float, Exec> master("master", parameters.extent(0));
    Kokkos::deep_copy(exec, master, parameters);
    const Array1<T, Exec> weights = in_type<T>(exec, master);
    model::Model<Exec, T> model(exec, config, rows,
                                {.sequences = sequences.count, .activations = activations});
    const Array1<float, Exec> gradients("gradients", parameters.extent(0));
    // Twice, as two micro-batches: gradients and losses add up.
    const model::TokenRows mine{.tokens = my_tokens, .targets = my_targets};
    model::WholeParameters<Exec, T> flat(model.parameter_map(), weights, gradients);
    FreshGradients<Exec, T> fresh(model.parameter_map(), weights, gradients);
    model::ParameterAccess<Exec, T>& access = fresh_gradients ? static_cast<decltype(access)>(fresh) : flat;
    std::optional<sparsity::SparseAttention<Exec, T>> selecting;
    std::optional<typename model::Model<Exec, T>::Sparse> sparse;
    if (!sparsity.empty()) {
      selecting.emplace(communicator, *attention_of_layer[0], problem,
                        sparsity::PatternOptions::parse(sparsity));
      sparse.emplace(*selecting, sparse_layers);
    }
    if (recorder != nullptr) recorder->set_rows({.count = sequences.count}, rows);
    for (int i = 0; i < 2; ++i) {
      model.train(exec, mine, 0.5f,
                  {.attention = std::span<executor::Attention<Exec, T>* const>(attention_of_layer),
                   .parameters = access,
                   .recorder = i == 0 ? recorder : nullptr,
                   .sparse = sparse ? &*sparse : nullptr});
    }
    if (selecting) selecting->check_pairs(exec);
    const auto loss = model.take_loss(exec);
    model::AttentionCalls calls;
    for (const model::AttentionCalls& of_layer : model.take_attention_calls()) calls += of_layer;
    communicator.all_reduce(exec, gradients);
    Result result;
    result.calls = calls;
    result.loss = communicator.all_reduce_value(loss.sum / 2, comm::ReduceOp::sum);
    result.valid = communicator.all_reduce_value(loss.valid / 2, comm::ReduceOp::sum);
    result.gradients.resize(gradients.extent(0));
    Kokkos::deep_copy(exec,
                      Kokkos::View<float*, Kokkos::HostSpace, Kokkos::MemoryUnmanaged>(
                          result.gradients.data(), result.gradients.size()),
                      gradients);
    return result;
  }
};

/// What rank 0 of so many ranks finds, which are threads.
template <class T = float>
ModelProblem::Result on_ranks(const ModelProblem& problem, int ranks, const std::string& layout,
                              const std::string& schedule, const ModelProblem::Sequences& sequences = {}) {
  ModelProblem::Result result;
  comm::run_loopback(Topology::uniform(ranks, ranks), [&](comm::Communicator& communicator) {
    auto mine = problem.run<T>(communicator, layout, schedule, sequences);
    if (communicator.rank() == 0) result = std::move(mine);
  });
  return result;
}

/// |a − b| / |b| in the 2-norm.
inline double relative_error(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (double(a[i]) - b[i]) * (double(a[i]) - b[i]);
    norm += double(b[i]) * b[i];
  }
  return std::sqrt(difference / norm);
}

}  // namespace annulus::test
