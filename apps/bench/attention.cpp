#include "bench/attention.hpp"

#include <spdlog/spdlog.h>

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/comm/communicator.hpp>
#include <annulus/core/memory.hpp>
#include <annulus/data/dataset.hpp>
#include <annulus/distributed/attention.hpp>
#include <annulus/io/atomic.hpp>
#include <annulus/plan/schedules.hpp>
#include <annulus/plan/validate.hpp>

#include "bench/dump.hpp"
#include "bench/global.hpp"
#include "bench/inputs.hpp"
#include "bench/local_attention.hpp"
#include "bench/report.hpp"
#include "bench/verify.hpp"

namespace annulus::bench {

namespace {

using Exec = Kokkos::DefaultExecutionSpace;
using plan::Pass;
using plan::Tensor;

/// The problem, and where the values of Q, K and V come from.
struct Case {
  plan::Problem problem;
  InputSource inputs;    // of q, k, v
  InputSource gradient;  // of d_o
};

Case make_case(const AttentionOptions& o, const comm::Communicator& communicator) {
  Case result;
  plan::Problem& problem = result.problem;
  problem.topology = communicator.topology();
  problem.layout = Layout::parse(o.layout, "--layout");
  problem.heads = o.heads;
  problem.kv_heads = o.key_value_heads();
  problem.head_dim = o.head_dim;
  problem.batch = o.batch;
  problem.activation = parse_dtype(o.dtype, "--dtype");
  problem = plan::arranged_for(o.schedule, std::move(problem), "--schedule");
  problem.mask =
      Mask::parse("full", o.tokens);  // until the documents of the data are known; rows do not depend on it
  const PositionMap rows = problem.shard(communicator.rank());
  result.gradient = {.seed = o.seed, .positions = rows, .tokens = {}};
  result.inputs = result.gradient;

  const bool documents_of_data = ("+" + o.mask + "+").find("+documents+") != std::string::npos;
  if (o.data.empty()) {
    require(!documents_of_data,
            "--mask '{}': without --data the term 'documents' needs start offsets, as in documents:0,100,250",
            o.mask);
    problem.mask = Mask::parse(o.mask, o.tokens, "--mask");
    return result;
  }
  const data::TokenDataset dataset(o.data, o.tokens);
  require(dataset.sequences() >= o.batch,
          "--data holds {} sequences of {} tokens, but --batch is {}: give more data", dataset.sequences(),
          o.tokens, o.batch);
  require(!documents_of_data || o.batch == 1,
          "--batch {} with the document boundaries of --data: each sequence has its own; use --batch 1",
          o.batch);
  result.inputs.seed = o.embedding_seed.value_or(o.seed);
  std::vector<std::int64_t> starts;
  for (int b = 0; b < o.batch; ++b) {
    data::Sequence sequence = dataset.read(b, rows);
    result.inputs.tokens.push_back(std::move(sequence.tokens));
    starts = std::move(sequence.document_starts);
  }
  problem.mask = documents_of_data ? Mask::with_documents(o.mask, o.tokens, starts, "--mask")
                                   : Mask::parse(o.mask, o.tokens, "--mask");
  return result;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : 0.5 * (values[half - 1] + values[half]);
}

/// Inputs and results of one rank, and the attention between them.
template <class T>
class Run {
 public:
  Run(const Exec& exec, comm::Communicator& communicator, const Case& c, const plan::Plan& forward,
      const plan::Plan& backward, attention::Kernel kernel)
      : exec_(exec),
        communicator_(communicator),
        problem_(c.problem),
        scale_(static_cast<float>(1.0 / std::sqrt(c.problem.head_dim))),
        q_(make_input<Exec, T>(exec, problem_, Tensor::q, c.inputs)),
        k_(make_input<Exec, T>(exec, problem_, Tensor::k, c.inputs)),
        v_(make_input<Exec, T>(exec, problem_, Tensor::v, c.inputs)),
        d_out_(make_input<Exec, T>(exec, problem_, Tensor::d_o, c.gradient)),
        out_(result(Tensor::o)),
        dq_(result(Tensor::dq)),
        dk_(result(Tensor::dk)),
        dv_(result(Tensor::dv)),
        lse_(Lse::uninitialized(exec, MemoryCategory::activations, "annulus::bench::lse", problem_.batch,
                                problem_.heads, c.inputs.positions.count)),
        attention_(exec, communicator, forward, backward, {.kernel = kernel}) {}

  float scale() const { return scale_; }

  void run(Pass pass) {
    if (pass == Pass::forward) {
      attention_.forward(exec_, *q_, *k_, *v_, scale_, *out_, *lse_);
    } else {
      attention_.backward(exec_, *q_, *k_, *v_, scale_, *out_, *lse_, *d_out_, *dq_, *dk_, *dv_);
    }
    exec_.fence("annulus::bench: a pass is done");
  }

  /// Times `repetitions` runs of a pass. Returns the time of the slowest rank, the median of the repetitions.
  double time(Pass pass, int repetitions, PassRecord& record) {
    std::vector<double> mine, slowest;
    attention_.reset_times();
    for (int r = 0; r < repetitions; ++r) {
      communicator_.barrier();
      const Kokkos::Timer timer;
      run(pass);
      mine.push_back(timer.seconds());
      slowest.push_back(communicator_.all_reduce_value(mine.back(), comm::ReduceOp::max));
    }
    double all = 0;
    for (const double seconds : mine) all += seconds;
    record.least_seconds = *std::min_element(mine.begin(), mine.end());
    record.median_seconds = median(mine);
    record.most_seconds = *std::max_element(mine.begin(), mine.end());
    record.waiting_share = attention_.times().waiting / all;
    return median(slowest);
  }

  /// All inputs and results on rank 0.
  std::map<Tensor, GlobalTensor> gather_all() {
    std::map<Tensor, GlobalTensor> all;
    const auto add = [&](Tensor tensor, const auto& owned) {
      all[tensor] = gather(communicator_, problem_, tensor, to_floats(owned.view()));
    };
    add(Tensor::q, q_);
    add(Tensor::k, k_);
    add(Tensor::v, v_);
    add(Tensor::d_o, d_out_);
    add(Tensor::o, out_);
    add(Tensor::lse, lse_);
    add(Tensor::dq, dq_);
    add(Tensor::dk, dk_);
    add(Tensor::dv, dv_);
    return all;
  }

 private:
  using Input = Owned<Array4<T, Exec>>;
  using Result = Owned<Array4<float, Exec>>;
  using Lse = Owned<Array3<float, Exec>>;

  Result result(Tensor tensor) const {
    const int heads = plan::is_query_side(tensor) ? problem_.heads : problem_.kv_heads;
    return Result::uninitialized(
        exec_, plan::is_gradient(tensor) ? MemoryCategory::gradients : MemoryCategory::activations,
        "annulus::bench::" + std::string(plan::name_of(tensor)), problem_.batch, heads,
        problem_.shard(communicator_.rank()).count, problem_.head_dim);
  }

  Exec exec_;
  comm::Communicator& communicator_;
  const plan::Problem& problem_;
  float scale_;
  Input q_, k_, v_, d_out_;
  Result out_, dq_, dk_, dv_;
  Lse lse_;
  distributed::Attention<Exec, T> attention_;
};

void add_traffic(const plan::Plan& plan, int rank, PassRecord& record) {
  const plan::Traffic traffic = plan::traffic(plan, rank);
  record.sent_bytes = traffic.sent_bytes;
  record.received_bytes = traffic.received_bytes;
  record.sent_bytes_between_nodes = traffic.sent_bytes_between_nodes;
  record.pairs = traffic.pairs * plan.problem.batch;
}

template <class T>
int run_as(const AttentionOptions& o, comm::Communicator& communicator, const Case& c) {
  const Exec exec;
  const plan::Plan forward = plan::make_plan(o.schedule, c.problem, Pass::forward, "--schedule");
  const plan::Plan backward = plan::make_plan(o.schedule, c.problem, Pass::backward, "--schedule");
  constexpr int cheap_to_validate = 64;  // ranks
  if (o.check || communicator.size() <= cheap_to_validate) {
    plan::validate(forward);
    plan::validate(backward);
  }
  Run<T> run(exec, communicator, c, forward, backward, attention::parse_kernel(o.kernel, "--kernel"));
  Report report{.options = o,
                .problem = c.problem,
                .communicator = communicator.description(),
                .execution_space = Exec::name(),
                .threads = exec.concurrency(),
                .ranks = {},
                .check = {}};
  run.run(Pass::forward);
  run.run(Pass::backward);
  std::int32_t failed = 0;
  if (o.check || !o.dump.empty()) {
    const auto tensors = run.gather_all();
    if (communicator.rank() == 0) {
      if (!o.dump.empty()) write_dump(o.dump, o, c.problem, run.scale(), tensors);
      if (o.check) {
        const double limit = o.tolerance.value_or(tolerance(c.problem.activation));
        report.check = compare(c.problem, run.scale(), limit, tensors);
        failed = report.check->passed() ? 0 : 1;
      }
    }
    failed = communicator.all_reduce_value(failed, comm::ReduceOp::max);
  }

  RankRecord mine;
  reset_memory_peaks();
  report.forward_seconds = run.time(Pass::forward, o.repetitions, mine.forward);
  report.backward_seconds = run.time(Pass::backward, o.repetitions, mine.backward);
  add_traffic(forward, communicator.rank(), mine.forward);
  add_traffic(backward, communicator.rank(), mine.backward);
  mine.peak_bytes = memory_use().peak;
  mine.peak_resident_bytes = peak_resident_bytes();
  report.ranks.resize(static_cast<std::size_t>(communicator.size()));
  communicator.all_gather(comm::Queue(HostExec()), &mine, report.ranks.data(), sizeof mine);
  if (communicator.rank() == 0) {
    fmt::print("{}", to_table(report));
    if (!o.json.empty()) io::write_text_atomically(o.json, to_json(report).dump(2) + "\n");
    if (failed != 0) spdlog::error("--check failed: a relative error is beyond the tolerance");
  }
  return failed;
}

}  // namespace

int run_attention(const AttentionOptions& options, const comm::MpiEnvironment& mpi) {
  check_options(options, mpi.size());
  if (mpi.rank() == 0) {
    for (const std::string& file : {options.json, options.dump})
      if (!file.empty()) io::require_writable(file);
  }
  if (options.local) return run_local_attention(options);
  const auto communicator = mpi.world(options.ranks_per_node);
  const Case c = make_case(options, *communicator);
  if (options.check) require_checkable(c.problem);
  switch (c.problem.activation) {
    case DType::bf16:
      return run_as<bfloat16>(options, *communicator, c);
    case DType::f16:
      return run_as<float16>(options, *communicator, c);
    default:
      return run_as<float>(options, *communicator, c);
  }
}

}  // namespace annulus::bench
