#include "prediction/step/update_time.hpp"

#include <algorithm>

#include <annulus/prediction/simulator/simulate.hpp>
#include <annulus/training/model/config.hpp>

#include "training/parameter_sharding/muon_shards.hpp"

namespace annulus::prediction {

using model::Recompute;

namespace {

AttentionTime::Pass pass_time(const plan::Plan& plan, const simulator::Cluster& cluster, bool overlap,
                              const simulator::Selected& selected) {
  const simulator::Simulation simulation =
      simulator::simulate(overlap ? plan : simulator::without_overlap(plan), cluster,
                          simulator::Detail::times, plan::RankSubset::automatic, selected);
  AttentionTime::Pass time;
  for (const simulator::RankSummary& rank : simulation.ranks)
    time.computing = std::max(time.computing, rank.computing);
  time.exposed_communication = std::max(0.0, simulation.time - time.computing);
  return time;
}

AttentionTime::Pass& operator+=(AttentionTime::Pass& sum, const AttentionTime::Pass& more) {
  sum.computing += more.computing;
  sum.exposed_communication += more.exposed_communication;
  return sum;
}

/// By what share of its time a copy to or from the host slows the layers beside it down: both read and write
/// the GPU's memory. Seen on two H200: 0.35, a step of 20.00 s in the place of 19.54 s for 2 × 30.2 GiB at
/// 50 GB/s (docs/benchmarks/gpu-recompute.md).
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

/// Collectives of the ranks that share the state.
class Sharding {
 public:
  Sharding(const Setting& setting, const simulator::Cluster& cluster) : cluster_(cluster) {
    const int ranks = setting.state.stage == 0 ? setting.topology.ranks() : setting.state.ranks;
    local_ = std::min(ranks, setting.topology.ranks_on(0));
    nodes_ = (ranks + local_ - 1) / local_;
    ranks_ = ranks;
  }
  /// Seconds of a gather, or of contributions to a sum, of `bytes` of all ranks together.
  double seconds(double bytes) const {
    if (ranks_ <= 1) return 0;
    const double part = bytes / ranks_;
    const double nic = cluster_.nics_per_node > 0
                           ? cluster_.inter_node.bandwidth * cluster_.nics_per_node / local_
                           : cluster_.inter_node.bandwidth;
    const double between = cluster_.rank_bandwidth > 0 ? std::min(nic, cluster_.rank_bandwidth) : nic;
    double time = 0;
    if (nodes_ > 1) time += (nodes_ - 1) * part / between + cluster_.inter_node.latency;
    if (local_ > 1)
      time += (local_ - 1) * nodes_ * part / cluster_.intra_node.bandwidth + cluster_.intra_node.latency;
    return time;
  }

 private:
  const simulator::Cluster& cluster_;
  int ranks_ = 1, local_ = 1, nodes_ = 1;
};

}  // namespace

AttentionTime attention_time(std::span<const executor::Plans> plans, const simulator::Cluster& cluster,
                             bool overlap, const simulator::Selected& selected) {
  AttentionTime time;
  for (const executor::Plans& of_sequence : plans) {
    time.forward += pass_time(of_sequence.forward, cluster, overlap, selected);
    if (of_sequence.backward) time.backward += pass_time(*of_sequence.backward, cluster, overlap, selected);
    if (of_sequence.recompute)
      time.recompute += pass_time(*of_sequence.recompute, cluster, overlap, selected);
  }
  return time;
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
                       std::span<const AttentionTime> attention, const simulator::Cluster& cluster) {
  const Work work(setting, share, cluster);
  const Sharding sharding(setting, cluster);
  const model::ParameterMap map(setting.model);
  const auto stage = setting.state.stage;
  const double weight = double(size_of(setting.state.weights)), passes = double(setting.passes);
  const Part forward = work.forward(), backward = work.backward(), around = work.around();
  const double copied_layers = setting.model.layers * setting.activations.offload;

  UpdateTime time;
  double hidden = around.total();  // compute of the passes behind which the gather of new weights may hide
  const double layer_bytes = double(map.unit(map.layer_unit(0)).size());
  const double gather = stage == 3 ? sharding.seconds(weight * layer_bytes) : 0,
               sum = stage >= 2 ? sharding.seconds(4 * layer_bytes) : 0;
  double host_bytes = 0;  // of offloaded layers
  if (copied_layers > 0) {
    const model::ModelArrays arrays =
        model::model_arrays(setting.model, share.rows, setting.type, setting.activations, 1, !setting.on_gpu);
    for (const PlannedArray& array : arrays.others)
      if (array.pinned && array.category == MemoryCategory::activations) host_bytes += double(array.bytes());
  }
  for (int i = 0; i < setting.model.layers; ++i) {
    const Recompute policy = setting.activations.of(i);
    const Part again = work.again(policy);
    const AttentionTime& of_layer = attention[static_cast<std::size_t>(i)];
    AttentionTime::Pass second;
    if (policy == Recompute::full) second = of_layer.forward;
    if (policy == Recompute::sequence_selective) second = of_layer.recompute;
    const double there = forward.total() + of_layer.forward.total(),
                 back = backward.total() + again.total() + of_layer.backward.total() + second.total();
    time.gemms += forward.products + backward.products;
    time.elementwise += forward.elementwise + backward.elementwise + again.elementwise;
    time.attention += of_layer.forward.computing + of_layer.backward.computing;
    time.recompute_gemms += again.products;
    time.recompute_attention += second.computing;
    time.exposed_communication += of_layer.forward.exposed_communication +
                                  of_layer.backward.exposed_communication + second.exposed_communication;
    time.exposed_sharding += std::max(0.0, gather - there) + std::max(0.0, gather + sum - back);
    hidden += there;
    // A layer's copy runs beside the layers up to the next one that is offloaded.
    if (copied_layers > 0) {
      const double copy = host_bytes / setting.model.layers / cluster.memory.host_copy;
      for (const double layer : {there, back})
        time.host_copies += std::max(0.0, copy - layer) + slowed_by_copies * std::min(copy, layer);
    }
  }
  time.gemms += around.products;
  time.elementwise += around.elementwise;
  if (stage >= 2) time.exposed_sharding += sum;  // of the embedding, behind the last layer
  for (double* part :
       {&time.gemms, &time.elementwise, &time.attention, &time.recompute_gemms, &time.recompute_attention,
        &time.exposed_communication, &time.exposed_sharding, &time.host_copies})
    *part *= passes;

  const double all = double(map.size()), mine = stage == 0 ? all : all / setting.state.ranks;
  if (stage == 0) time.exposed_sharding += 2 * sharding.seconds(4 * all);
  if (stage == 1) time.exposed_sharding += sharding.seconds(4 * all);
  if (stage == 1 || stage == 2)
    time.exposed_sharding += std::max(0.0, sharding.seconds(weight * all) - hidden);
  // Gradients are read for their norm, and set to zero before the next step; AdamW reads them, masters and
  // moments, and writes masters, moments and weights.
  const double zeros = stage < 2 ? 4 * all : 0;
  const double update = mine * (28 + (setting.type == DType::f32 ? 0 : weight));
  time.optimizer = (4 * mine + zeros) / cluster.memory.device;
  // Matrices that Muon makes orthogonal, in fp32, and what they travel there and back.
  const parameter_sharding::MuonWork muon = parameter_sharding::muon_work(map, setting.updates);
  const int owners = stage == 0 ? 1 : setting.state.ranks;
  time.optimizer += muon.flops / owners /
                    cluster.gemm_rate(parameter_sharding::muon_sizes(map, setting.updates).side, DType::f32);
  if (stage > 0) time.exposed_sharding += 2 * sharding.seconds(4 * muon.elements) / owners;
  if (setting.state.offload)
    time.host_copies += std::max(update / cluster.memory.host, 4 * mine / cluster.memory.host_copy);
  else
    time.optimizer += update / cluster.memory.device;
  return time;
}

}  // namespace annulus::prediction
