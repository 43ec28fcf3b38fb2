#include "prediction/emulator/emulate.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <memory>
#include <mutex>
#include <thread>

#include <annulus/attention/comm/loopback.hpp>
#include <annulus/base/error.hpp>

#include "prediction/emulator/links.hpp"

#include "base/with_dtype.hpp"

namespace annulus::emulator {

namespace {

using Clock = std::chrono::steady_clock;
using plan::Tensor;

Clock::duration duration_of(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// A moment at which all ranks go on: the first that leaves a barrier sets it, the others have left by then.
class StartLine {
 public:
  StartLine(const simulator::Cluster& cluster, const Topology& topology, int rounds)
      // Ranks leave a barrier within some latencies of one another, and within what a busy machine takes to
      // wake their threads.
      : margin_(duration_of(0.02 + 4 * longest_latency(cluster, topology))),
        starts_(static_cast<std::size_t>(rounds)) {}

  struct Agreed {
    Clock::time_point start;
    bool is_mine = false;  // this rank has set it
  };
  Agreed agree(comm::Communicator& communicator, int round) {
    communicator.barrier();
    auto& start = starts_[round];
    Clock::rep unset = 0;
    const bool is_mine =
        start.compare_exchange_strong(unset, (Clock::now() + margin_).time_since_epoch().count());
    return {Clock::time_point(Clock::duration(start.load())), is_mine};
  }

 private:
  Clock::duration margin_;
  std::vector<std::atomic<Clock::rep>> starts_;
};

/// Values in [−1, 1), a function of their global places.
template <class T>
Array4<T, HostExec> input(const plan::Problem& problem, Tensor tensor, int rank) {
  const PositionMap rows = problem.shard(rank);
  const int heads = plan::is_query_side(tensor) ? problem.heads : problem.kv_heads;
  const int columns = problem.columns(tensor);
  const Array4<T, HostExec> values("annulus::emulator::input", problem.batch, heads, rows.count, columns);
  for (int b = 0; b < problem.batch; ++b) {
    for (int h = 0; h < heads; ++h) {
      for (std::int64_t r = 0; r < rows.count; ++r) {
        for (int i = 0; i < columns; ++i) {
          const std::int64_t place = ((rows(r) * 131 + h) * 67 + i) * 11 + b * 5 + static_cast<int>(tensor);
          values(b, h, r, i) = T(static_cast<float>(place * 40503 % 1009) / 504.5f - 1.0f);
        }
      }
    }
  }
  return values;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// The collectives of one rank beside its passes.
class RankCollectives {
 public:
  /// Collective over the ranks.
  RankCollectives(comm::Communicator& communicator, const EmulationOptions& options) {
    const Beside &forward = options.beside_forward, &backward = options.beside_backward;
    const auto ranks = static_cast<std::size_t>(communicator.size()),
               floats = static_cast<std::size_t>(std::max(forward.summed_floats, backward.summed_floats)),
               bytes = static_cast<std::size_t>(std::max(forward.gathered_bytes, backward.gathered_bytes));
    if (floats + bytes == 0) return;
    communicator_ = communicator.for_another_thread();
    contributions_.resize(ranks * floats);
    sum_.resize(floats);
    own_.resize(bytes);
    gathered_.resize(ranks * bytes);
  }

  /// Those beside a pass, from `start` on. Seconds from there until they have ended; 0: there are none.
  std::future<double> begin(const Beside& beside, Clock::time_point start) {
    if (beside.summed_floats + beside.gathered_bytes == 0)
      return std::async(std::launch::deferred, [] { return 0.0; });
    return std::async(std::launch::async, [this, &beside, start] {
      std::this_thread::sleep_until(start);
      const Queue queue{HostExec()};
      constexpr int channel = 0;
      if (beside.summed_floats > 0) {
        const auto floats = static_cast<std::size_t>(beside.summed_floats);
        communicator_
            ->start_reduce_scatter(queue, contributions_.data(), sum_.data(),
                                   {.count = floats, .type = DType::f32, .op = comm::ReduceOp::sum}, channel)
            .wait();
      }
      if (beside.gathered_bytes > 0) {
        const auto bytes = static_cast<std::size_t>(beside.gathered_bytes);
        communicator_->start_all_gather(queue, own_.data(), gathered_.data(), bytes, channel).wait();
      }
      return seconds_since(start);
    });
  }

 private:
  std::unique_ptr<comm::Communicator> communicator_;
  std::vector<float> contributions_, sum_;
  std::vector<std::byte> own_, gathered_;
};

class EmulationRun {
 public:
  EmulationRun(const plan::Plan& forward, const plan::Plan& backward, const simulator::Cluster& cluster,
               const EmulationOptions& options, EmulatedLinks& links)
      : forward_(forward),
        backward_(backward),
        problem_(forward.problem),
        options_(options),
        links_(links),
        start_(cluster, problem_.topology, 2 * options.repetitions),
        results_(static_cast<std::size_t>(options.repetitions)) {
    for (Passes& passes : results_) {
      for (Measured* pass : {&passes.forward, &passes.backward}) {
        pass->exposed_communication.resize(static_cast<std::size_t>(problem_.ranks()));
      }
    }
  }

  template <class T>
  void rank(comm::Communicator& communicator) {
    const HostExec exec;
    const auto in = [&](Tensor tensor) { return input<T>(problem_, tensor, communicator.rank()); };
    const auto q = in(Tensor::q), k = in(Tensor::k), v = in(Tensor::v), d_out = in(Tensor::d_o);
    const auto like = [](const char* label, const auto& x) {
      return Array4<float, HostExec>(label, x.extent(0), x.extent(1), x.extent(2), x.extent(3));
    };
    const auto out = like("annulus::emulator::out", d_out), dq = like("annulus::emulator::dq", q),
               dk = like("annulus::emulator::dk", k), dv = like("annulus::emulator::dv", v);
    const Array3<float, HostExec> lse("annulus::emulator::lse", q.extent(0), q.extent(1), q.extent(2)),
        d("annulus::emulator::d", q.extent(0), q.extent(1), q.extent(2));
    const auto scale = static_cast<float>(1.0 / std::sqrt(problem_.head_dim));
    executor::Attention<HostExec, T> attention(exec, communicator, forward_, backward_, settings());

    RankCollectives collectives(communicator, options_);
    const auto time = [&](int round, const Beside& beside, Measured& measured, const auto& pass) {
      attention.reset_times();
      const auto [start, is_mine] = start_.agree(communicator, round);
      if (is_mine) links_.begin_traffic(beside.flows, start);
      std::future<double> collectives_ended = collectives.begin(beside, start);
      std::this_thread::sleep_until(start);
      pass();
      exec.fence("annulus::emulate: the pass is done");
      const double seconds = seconds_since(start);
      double ended = collectives_ended.get();
      if (is_mine) ended = std::max(ended, links_.wait_for_traffic());
      const std::lock_guard lock(mutex_);
      measured.time = std::max(measured.time, seconds);
      measured.beside_ended = std::max(measured.beside_ended, ended);
      measured.exposed_communication[communicator.rank()] = attention.times().exposed_communication;
    };
    for (int i = 0; i < options_.repetitions; ++i) {
      Passes& passes = results_[i];
      time(2 * i, options_.beside_forward, passes.forward, [&] {
        attention.forward(exec, {.q = q, .k = k, .v = v, .scale = scale, .out = out, .lse = lse});
      });
      time(2 * i + 1, options_.beside_backward, passes.backward, [&] {
        attention::row_dot<HostExec, T>(exec, out, d_out, d);
        attention.backward(exec, {.q = q,
                                  .k = k,
                                  .v = v,
                                  .scale = scale,
                                  .lse = lse,
                                  .d = d,
                                  .d_out = d_out,
                                  .dq = dq,
                                  .dk = dk,
                                  .dv = dv});
      });
    }
  }

  executor::Settings settings() const {
    executor::Settings settings = options_.settings;
    if (options_.selected.all()) return settings;
    settings.synthetic_pairs = options_.selected.pairs;
    if (!settings.synthetic_pairs)
      settings.synthetic_pairs = [selected = options_.selected](
                                     const plan::Problem& problem, const PositionMap& queries,
                                     const PositionMap& keys, plan::HeadRange heads) {
        return selected.share_of(problem.mask.pairs(queries, keys) * heads.size());
      };
    return settings;
  }

  void rank_of_type(comm::Communicator& communicator) {
    require(with_dtype<float, bfloat16, float16>(problem_.dtype,
                                                 [&](auto zero) { rank<decltype(zero)>(communicator); }),
            "attention stores f32, bf16 or f16, not {}", name_of(problem_.dtype));
  }

  std::vector<Passes> results() const { return results_; }

 private:
  const plan::Plan &forward_, &backward_;
  const plan::Problem& problem_;
  const EmulationOptions& options_;
  EmulatedLinks& links_;
  StartLine start_;
  std::mutex mutex_;
  std::vector<Passes> results_;
};

}  // namespace

simulator::Cluster slowed(const simulator::Cluster& cluster, double factor) {
  require(std::isfinite(factor) && factor > 0, "the factor of slow motion is {}: it must be above 0", factor);
  simulator::Cluster slow = cluster;
  for (simulator::Link* link : {&slow.intra_node, &slow.inter_node}) {
    link->bandwidth /= factor;
    link->latency *= factor;
  }
  slow.rank_bandwidth /= factor;
  for (double* rate : {&slow.memory.device, &slow.memory.host_copy, &slow.memory.host}) *rate /= factor;
  for (simulator::KernelRate& kernel : slow.kernels) kernel.rate /= factor;
  for (simulator::GemmRate& gemm : slow.gemms) gemm.rate /= factor;
  return slow;
}

double longest_latency(const simulator::Cluster& cluster, const Topology& topology) {
  return std::max(topology.ranks() > topology.nodes() ? cluster.intra_node.latency : 0,
                  topology.nodes() > 1 ? cluster.inter_node.latency : 0);
}

std::function<void(const executor::LocalWork&)> sleeping_kernel(const simulator::Cluster& cluster,
                                                                const plan::Problem& problem) {
  plan::Problem sequence = problem;
  sequence.batch = 1;  // LocalWork counts the pairs of the whole batch
  return [cluster, sequence](const executor::LocalWork& work) {
    const Clock::time_point start = Clock::now();
    const auto mask = simulator::mask_of(work.pairs, work.query_rows * work.key_rows * work.heads);
    const double rate = cluster.rate(work.pass, sequence.head_dim, std::min(work.query_rows, work.key_rows),
                                     sequence.dtype, mask);
    std::this_thread::sleep_until(start +
                                  duration_of(simulator::flops(sequence, work.pass, work.pairs) / rate));
  };
}

std::vector<Passes> run(const plan::Plan& forward, const plan::Plan& backward,
                        const simulator::Cluster& cluster, const EmulationOptions& options) {
  require(options.repetitions > 0, "emulator::run: {} repetitions", options.repetitions);
  for (const Beside* beside : {&options.beside_forward, &options.beside_backward})
    require(beside->summed_floats >= 0 && beside->gathered_bytes >= 0,
            "emulator::run: {} floats summed and {} bytes gathered beside a pass", beside->summed_floats,
            beside->gathered_bytes);
  require(options.selected.all() || options.settings.synthetic_kernel,
          "emulator::run: kernels that compute take all pairs: give a synthetic kernel, or select none");
  const Topology& topology = forward.problem.topology;
  EmulatedLinks links(cluster, topology);
  comm::LoopbackOptions loopback;
  loopback.wire = &links;
  EmulationRun run(forward, backward, cluster, options, links);
  comm::run_loopback(
      topology, [&](comm::Communicator& communicator) { run.rank_of_type(communicator); }, loopback);
  return run.results();
}

}  // namespace annulus::emulator
