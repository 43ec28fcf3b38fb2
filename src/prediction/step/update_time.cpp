#include "prediction/step/update_time.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <annulus/training/model/config.hpp>

#include "training/parameter_sharding/muon_shards.hpp"

namespace annulus::prediction {

using model::Recompute;

namespace {

/// By what share of its time a copy to or from the host slows the layers beside it down: both read and write
/// the GPU's memory. Seen on two H200: 0.35, a step of 20.00 s in the place of 19.54 s for 2 × 30.2 GiB at
/// 50 GB/s (docs/benchmarks/training.md).
constexpr double slowed_by_copies = 1.0 / 3;

/// Seconds of one layer in a pass, or of what lies around the layers.
struct Part {
  double products = 0, elementwise = 0;
  double total() const { return products + elementwise; }
};

/// What a rank computes in a pass.
class Work {
 public:
  Work(const Setting& setting, const RankShare& share, const simulator::Cluster& cluster)
      : setting_(setting),
        cluster_(cluster),
        rows_(double(share.rows.sequences) * double(share.rows.tokens)),
        element_(double(size_of(setting.type))) {}

  double product(const model::WeightMatrix& weight) const {
    return 2 * rows_ * double(weight.out) * double(weight.in) /
           cluster_.gemm_rate(std::min(weight.out, weight.in), setting_.type);
  }
  double moved(double bytes) const { return bytes / cluster_.memory.device; }

  Part forward() const {
    Part part;
    for (const model::WeightMatrix& weight : matrices()) part.products += product(weight);
    part.elementwise = inputs() + moved(rows_ * (joined() + gated() + norm_before() + 2 * norm_behind()));
    return part;
  }
  /// What of the forward comes before attention.
  double projections() const { return inputs() + product(matrices().front()); }
  /// What of the backward comes after attention's.
  double projections_backward() const { return 2 * product(matrices().front()); }
  /// What the backward pass computes again besides attention: all products but the last, which only a norm
  /// behind it reads.
  Part again(Recompute policy) const {
    if (policy == Recompute::none) return {};
    Part part{.elementwise = inputs() + moved(rows_ * (norm_before() + 2 * norm_behind()))};
    const std::size_t last = shape().block.norms_behind() ? 0 : 1;
    for (std::size_t i = 0; i + last < matrices().size(); ++i) part.products += product(matrices()[i]);
    if (policy != Recompute::selective) part.elementwise += moved(rows_ * joined());
    return part;
  }
  Part backward() const {
    Part part;
    for (const model::WeightMatrix& weight : matrices()) part.products += 2 * product(weight);
    const double q = double(shape().q_width()), qkv = double(shape().qkv_width()), ffn = shape().ffn,
                 hidden = shape().hidden;
    const double norms = (shape().block.norms_before() ? 2 : 0) + (shape().block.norms_behind() ? 2 : 0);
    const double bytes = gated() + 5 * ffn * element_                         // gate, up and their gradients
                         + 2 * norm_before() + norms * 4 * hidden * element_  // norms again, their gradients
                         + 4 * q * element_                                   // D, and the heads of dO
                         + qkv * (4 + element_)                               // heads of dQ, dK and dV
                         + 4 * qkv;                                           // which begin with zeros
    part.elementwise = moved(rows_ * bytes);
    return part;
  }
  /// The embedding, the final norm, the LM head with the loss, forward and backward.
  Part around() const {
    const double hidden = shape().hidden, vocabulary = double(shape().vocabulary);
    return {.products = 3 * product({shape().vocabulary, shape().hidden}),
            .elementwise = moved(rows_ * (vocabulary * (8 + element_) + hidden * (11 * element_ + 4)))};
  }

 private:
  const model::Config& shape() const { return setting_.model; }
  std::array<model::WeightMatrix, 4> matrices() const { return model::layer_matrices(shape()); }
  // Bytes of a row, read and written.
  double norm_before() const { return shape().block.norms_before() ? 2 * shape().hidden * element_ : 0; }
  double norm_behind() const { return shape().block.norms_behind() ? 3 * shape().hidden * element_ : 0; }
  double gated() const { return 3.0 * shape().ffn * element_; }
  double joined() const { return double(shape().q_width()) * (4 + element_); }
  double inputs() const {
    return moved(rows_ * (norm_before() + 2 * double(shape().qkv_width()) * element_));
  }

  const Setting& setting_;
  const simulator::Cluster& cluster_;
  double rows_, element_;
};

/// The ranks that share the state.
Topology sharing_ranks(const Setting& setting) {
  return setting.state.stage == 0 ? setting.topology : first_ranks(setting.topology, setting.state.ranks);
}

/// The layers of a pass, one after the other, with what travels beside each of them.
class Layers {
 public:
  Layers(const Setting& setting, const RankShare& share, std::span<const LayerAttention* const> attention,
         const simulator::Cluster& cluster)
      : setting_(setting),
        attention_(attention),
        cluster_(cluster),
        work_(setting, share, cluster),
        sharding_(sharing_ranks(setting), cluster,
                  setting.state.native_sums ? comm::Sums::native : comm::Sums::rank_order) {
    const model::ParameterMap map(setting.model);
    const double layer = double(map.unit(map.layer_unit(0)).size());
    const int stage = setting.state.stage;
    if (stage == 3) bytes_.gathered = weight_bytes() * layer;
    if (stage >= 2) bytes_.summed = 4 * layer;
    // A layer's copy runs beside the layers up to the next one that is offloaded.
    if (setting.activations.offload > 0) bytes_.copied = host_bytes(share) / setting.model.layers;
  }

  const Work& work() const { return work_; }
  const Collectives& sharding() const { return sharding_; }
  double weight_bytes() const { return double(size_of(setting_.state.weights)); }
  /// Seconds of the sum of the embedding's gradient, behind the last layer.
  double last_sum() const { return simulator::seconds_alone(sharding_.sum(bytes_.summed)); }

  Recompute policy(int layer) const { return setting_.activations.of(layer); }
  const LayerAttention& attention(int layer) const { return *attention_[static_cast<std::size_t>(layer)]; }
  /// The pass of attention that the backward computes again.
  static std::optional<AttentionPass> again(Recompute policy) {
    if (policy == Recompute::full) return AttentionPass::forward;
    if (policy == Recompute::sequence_selective) return AttentionPass::recompute;
    return std::nullopt;
  }

  /// Waits of a layer, the copies' slowing down of its kernels among them. `more`: gathers beside the forward
  /// that nobody waits for there, of which what has not ended is left.
  LayerWaits forward(int layer, simulator::SideQueue* more = nullptr) const {
    const double before = work_.projections();
    const std::array parts{LayerPart{before, AttentionPass::forward},
                           LayerPart{work_.forward().total() - before}};
    LayerTraffic traffic = forward_traffic(bytes_, sharding_, cluster_);
    if (more != nullptr) traffic.sharding = std::move(*more);
    const LayerWaits waits =
        with_slowing(layer_waits(attention(layer), parts, traffic, more == nullptr),
                     work_.forward().total() + attention(layer).alone(AttentionPass::forward).total());
    if (more != nullptr) *more = std::move(traffic.sharding);
    return waits;
  }
  LayerWaits backward(int layer) const {
    const Part recomputed = work_.again(policy(layer)), own = work_.backward();
    const std::optional<AttentionPass> second = again(policy(layer));
    double rest = recomputed.total() + own.total() - work_.projections_backward();
    std::vector<LayerPart> parts;
    if (second) {
      const double before = std::min(work_.projections(), recomputed.total());
      parts.push_back({before, second});
      rest -= before;
    }
    parts.push_back({rest, AttentionPass::backward});
    parts.push_back({work_.projections_backward()});
    LayerTraffic traffic = backward_traffic(bytes_, sharding_, cluster_);
    double alone = attention(layer).alone(AttentionPass::backward).total() +
                   (second ? attention(layer).alone(*second).total() : 0);
    for (const LayerPart& part : parts) alone += part.seconds;
    return with_slowing(layer_waits(attention(layer), parts, traffic), alone);
  }

 private:
  /// Bytes that all offloaded layers keep in memory of the host.
  double host_bytes(const RankShare& share) const {
    double bytes = 0;
    for (const PlannedArray& array : model::model_arrays(setting_.model, share.rows, setting_.type,
                                                         setting_.activations, 1, !setting_.on_gpu)
                                         .others)
      if (array.pinned && array.category == MemoryCategory::activations) bytes += double(array.bytes());
    return bytes;
  }
  LayerWaits with_slowing(LayerWaits waits, double alone) const {
    waits.copies += slowed_by_copies * std::min(bytes_.copied / cluster_.memory.host_copy, alone);
    return waits;
  }

  const Setting& setting_;
  std::span<const LayerAttention* const> attention_;
  const simulator::Cluster& cluster_;
  Work work_;
  Collectives sharding_;
  LayerBytes bytes_;
};

/// What the first pass waits for beyond the others while the new weights of all units travel beside its
/// forward, in stages 1 and 2.
LayerWaits first_pass_waits(const Layers& layers, const Setting& setting,
                            const std::map<std::pair<const LayerAttention*, Recompute>, LayerWaits>& forward,
                            const simulator::Cluster& cluster) {
  LayerWaits more;
  simulator::SideQueue gather =
      layers.sharding().gather(layers.weight_bytes() * double(model::ParameterMap(setting.model).size()));
  for (int i = 0; i < setting.model.layers && !gather.empty(); ++i) {
    more.add(layers.forward(i, &gather));
    more.add(forward.at({&layers.attention(i), layers.policy(i)}), -1);
  }
  const simulator::SideTraffic left{{std::move(gather)}};
  more.sharding +=
      simulator::advance(simulator::advance(left, cluster, layers.work().around().total()).left, cluster)
          .ended.front();
  return more;
}

}  // namespace

double attention_seconds(const Setting& setting, const RankShare& share, const LayerAttention& attention,
                         const simulator::Cluster& cluster) {
  const LayerAttention* const of_layer = &attention;
  const Layers layers(setting, share, {&of_layer, 1}, cluster);
  double seconds =
      attention.alone(AttentionPass::forward).computing + attention.alone(AttentionPass::backward).computing;
  if (const auto second = Layers::again(layers.policy(0))) seconds += attention.alone(*second).computing;
  LayerWaits waits = layers.forward(0);
  waits.add(layers.backward(0));
  return seconds + waits.communication + waits.sharding + waits.copies;
}

double UpdateTime::total() const {
  double sum = 0;
  for (const auto& [name, seconds] : parts()) sum += seconds;
  return sum;
}

std::vector<std::pair<std::string_view, double>> UpdateTime::parts() const {
  return {{"gemms", gemms},
          {"attention", attention},
          {"recompute_gemms", recompute_gemms},
          {"recompute_attention", recompute_attention},
          {"elementwise", elementwise},
          {"exposed_communication", exposed_communication},
          {"exposed_sharding", exposed_sharding},
          {"host_copies", host_copies},
          {"optimizer", optimizer}};
}

UpdateTime update_time(const Setting& setting, const RankShare& share,
                       std::span<const LayerAttention* const> attention, const simulator::Cluster& cluster) {
  const Layers layers(setting, share, attention, cluster);
  const Work& work = layers.work();
  const auto stage = setting.state.stage;
  const double passes = double(setting.passes);
  const Part forward = work.forward(), backward = work.backward(), around = work.around();

  UpdateTime time;
  LayerWaits waits;
  std::map<std::pair<const LayerAttention*, Recompute>, LayerWaits> forwards, backwards;  // of equal layers
  for (int i = 0; i < setting.model.layers; ++i) {
    const Recompute policy = layers.policy(i);
    const Part again = work.again(policy);
    const LayerAttention& of_layer = layers.attention(i);
    const std::optional<AttentionPass> second = Layers::again(policy);
    time.gemms += forward.products + backward.products;
    time.elementwise += forward.elementwise + backward.elementwise + again.elementwise;
    time.attention +=
        of_layer.alone(AttentionPass::forward).computing + of_layer.alone(AttentionPass::backward).computing;
    time.recompute_gemms += again.products;
    if (second) time.recompute_attention += of_layer.alone(*second).computing;
    const std::pair key(&of_layer, policy);
    if (!forwards.contains(key)) {
      forwards[key] = layers.forward(i);
      backwards[key] = layers.backward(i);
    }
    waits.add(forwards[key]);
    waits.add(backwards[key]);
  }
  time.gemms += around.products;
  time.elementwise += around.elementwise;
  waits.sharding += layers.last_sum();
  LayerWaits first{};
  if (stage == 1 || stage == 2) first = first_pass_waits(layers, setting, forwards, cluster);
  for (double* part :
       {&time.gemms, &time.elementwise, &time.attention, &time.recompute_gemms, &time.recompute_attention})
    *part *= passes;
  time.exposed_communication = passes * waits.communication + first.communication;
  time.exposed_sharding = passes * waits.sharding + first.sharding;
  time.host_copies = passes * waits.copies + first.copies;

  const model::ParameterMap map(setting.model);
  const double all = double(map.size()), mine = stage == 0 ? all : all / setting.state.ranks;
  const auto gathering = [&](double bytes) {
    return simulator::seconds_alone(layers.sharding().gather(bytes));
  };
  if (stage < 2) time.exposed_sharding += simulator::seconds_alone(layers.sharding().sum(4 * all));
  if (stage == 0) time.exposed_sharding += gathering(4 * all);
  // Gradients are read for their norm, and set to zero before the next step; AdamW reads them, masters and
  // moments, and writes masters, moments and weights.
  const double zeros = stage < 2 ? 4 * all : 0;
  const double update = mine * (28 + (setting.type == DType::f32 ? 0 : layers.weight_bytes()));
  time.optimizer = (4 * mine + zeros) / cluster.memory.device;
  // Matrices that Muon makes orthogonal, and what they travel there and back.
  const parameter_sharding::MuonWork muon = parameter_sharding::muon_work(map, setting.updates);
  const int owners = stage == 0 ? 1 : setting.state.ranks;
  time.optimizer +=
      muon.flops / owners /
      cluster.gemm_rate(parameter_sharding::muon_sizes(map, setting.updates).side, setting.type);
  if (stage > 0) time.exposed_sharding += 2 * gathering(4 * muon.elements) / owners;
  if (setting.state.offload)
    time.host_copies += std::max(update / cluster.memory.host, 4 * mine / cluster.memory.host_copy);
  else
    time.optimizer += update / cluster.memory.device;
  return time;
}

}  // namespace annulus::prediction
