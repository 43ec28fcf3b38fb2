// Packed documents: each has a selection of its own, wherever its rows lie.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "attention/sparsity/double_precision.hpp"
#include "support/tool_notes.hpp"

namespace annulus::test {
namespace {

/// Documents of one token, of less than a block, of one, of several, at and off the blocks of the sequence.
constexpr const char* documents = "documents:0,1,64,65,199,206,320,323";
constexpr AttentionShape of_documents{.tokens = 555, .head_dim = 16, .batch = 2, .heads = 4, .kv_heads = 2};

TEST(PackedDocuments, HaveTheSameSelectionForEveryLayoutScheduleAndNumberOfRanks) {
  for (const DType type : {DType::f32, DType::bf16}) {
    const auto problem = AttentionProblem::random(of_documents, documents, type, 2.0);
    for (const char* options :
         {"vertical-slash:recall=0.6,window=40,sinks=3", "vertical-slash:recall=0.8,window=100,select=heads",
          "vertical-slash:recall=0.7,budget=joint", "vertical-slash:verticals=12,slashes=2,dense-below=130",
          "xattention:block=64,stride=16,threshold=0.6",
          "xattention:block=128,stride=8,threshold=0.5,dense-below=100", "moba:block=64,top=2",
          "infllm-v2:block=64,top=1,sinks=3,window=40,stride=8"})
      expect_one_selection(problem, options, type);
  }
}

TEST(PackedDocuments, SelectAsInDoublePrecision) {
  const auto problem = AttentionProblem::random(of_documents, documents, DType::f32, 2.0);
  int number = 0;
  for (const ExactChoice& choice :
       {ExactChoice{.recall = 0.5}, ExactChoice{.recall = 0.8, .window = 150, .sinks = 3, .local = 66},
        ExactChoice{.recall = 0.6, .joint = true, .window = 30, .sinks = 2},
        ExactChoice{.recall = 0.4, .window = 1}, ExactChoice{.verticals = 9, .slashes = 2, .sinks = 4},
        ExactChoice{.recall = 0.5, .dense_below = 134}, ExactChoice{.recall = 1}}) {
    std::vector<std::string> masks;
    if (number % 2 == 1) masks = {documents, "documents:0,70,71,300"};
    expect_as_in_double_precision(problem, choice, number++ % 3 == 0, masks);
  }
}

// Where a document's blocks are the same, nothing of its selection says what stands beside it.
TEST(PackedDocuments, AreSelectedForAsAloneWhereTheyBeginWithABlock) {
  constexpr std::int64_t begin = 128, tokens = 300;
  const AttentionShape of_all{
      .tokens = begin + tokens, .head_dim = 16, .batch = 1, .heads = 2, .kv_heads = 1};
  const auto all = AttentionProblem::random(of_all, "documents:0,128", DType::f32, 2.0);
  AttentionShape of_one = of_all;
  of_one.tokens = tokens;
  auto one = AttentionProblem::random(of_one, "causal", DType::f32, 2.0);
  for (auto [from, to] : {std::pair{&all.q, &one.q}, {&all.k, &one.k}})
    for (std::int64_t head = 0; head < (to == &one.q ? 2 : 1); ++head)
      for (std::int64_t row = 0; row < tokens; ++row)
        std::copy_n(from->row(0, head, begin + row), 16, to->row(0, head, row));
  for (const char* options : {"vertical-slash:recall=0.6,window=50,sinks=2,select=heads",
                              "xattention:block=64,stride=16,threshold=0.5", "moba:block=64,top=2",
                              "infllm-v2:block=64,top=1,sinks=1,window=70,stride=8"}) {
    const HostSelection packed = selected(all, {.options = options}),
                        alone = selected(one, {.options = options});
    std::int64_t different = 0, left_out = 0;
    for (std::int64_t list = 0; list < alone.lists; ++list)
      for (std::int64_t q = 0; q < tokens; ++q)
        for (std::int64_t k = 0; k <= q; ++k) {
          different += packed.allows(list, begin + q, begin + k) != alone.allows(list, q, k) ? 1 : 0;
          left_out += alone.allows(list, q, k) ? 0 : 1;
        }
    EXPECT_EQ(different, 0) << options;
    EXPECT_GT(left_out, 0) << options;
  }
}

TEST(PackedDocuments, AreComputedExactlyUnderEverySchedule) {
  const auto problem =
      AttentionProblem::random({.tokens = 261, .head_dim = 16, .batch = 1, .heads = 8, .kv_heads = 4},
                               "documents:0,20,70,102,240", DType::f32, 1.5);
  expect_exact_under_every_schedule(
      problem, {"vertical-slash:verticals=11,slashes=1", "xattention:block=128,stride=16,threshold=0.5",
                "moba:block=64,top=1", "infllm-v2:block=64,top=1,sinks=3,window=20,stride=8"});
}

TEST(PackedDocuments, OfEachSequenceAreItsOwn) {
  const auto problem = AttentionProblem::random(
      {.tokens = 400, .head_dim = 24, .batch = 3, .heads = 4, .kv_heads = 2}, "causal", DType::f32, 1.5);
  for (const char* options :
       {"vertical-slash:recall=0.5,window=30,sinks=1",
        "vertical-slash:verticals=8,slashes=1,select=heads,dense-below=100",
        "xattention:block=64,stride=8,threshold=0.5", "moba:block=64,top=2,dense-below=60",
        "infllm-v2:block=64,top=1,sinks=1,window=30,stride=16"})
    for (const auto& [ranks, kernel] :
         {std::pair{1, attention::Kernel::automatic}, {3, attention::Kernel::portable}})
      expect_exact<float>(problem,
                          {.options = options,
                           .topology = Topology::uniform(ranks, ranks),
                           .layout = Layout::parse(ranks == 1 ? "contiguous" : "zigzag"),
                           .kernel = kernel,
                           .masks = {"documents:0,99,250", "documents:0,1,2,3,270,399", "causal"}},
                          options);
}

TEST(PackedDocuments, OfEachSequenceAreSelectedForAsIfAllHadThem) {
  const AttentionShape of{.tokens = 400, .head_dim = 16, .batch = 2, .heads = 4, .kv_heads = 2};
  const std::vector<std::string> masks{"documents:0,200", "documents:0,30,390"};
  const auto problem = AttentionProblem::random(of, "causal", DType::f32, 1.5);
  for (const char* options :
       {"vertical-slash:recall=0.5,window=30", "xattention:block=64,stride=8,threshold=0.5",
        "moba:block=64,top=2", "infllm-v2:block=64,top=1,sinks=1,window=30,stride=8"}) {
    const HostSelection own = selected(problem, {.options = options, .masks = masks});
    for (std::int64_t sequence = 0; sequence < of.batch; ++sequence) {
      const HostSelection all =
          selected(AttentionProblem::random(of, masks[static_cast<std::size_t>(sequence)], DType::f32, 1.5),
                   {.options = options});
      std::int64_t different = 0;
      for (std::int64_t list = sequence * own.lists; list < (sequence + 1) * own.lists; ++list)
        for (std::int64_t q = 0; q < of.tokens; ++q)
          for (std::int64_t k = 0; k <= q; ++k)
            different += own.allows(list, q, k) != all.allows(list, q, k) ? 1 : 0;
      EXPECT_EQ(different, 0) << options << ", sequence " << sequence;
    }
  }
}

TEST(PackedDocuments, ShorterThanTheThresholdAreDense) {
  const auto problem = AttentionProblem::random(of_documents, documents, DType::f32, 1.5);
  for (const char* options :
       {"vertical-slash:verticals=0,slashes=1,dense-below=135",
        "xattention:block=64,stride=16,threshold=0.01,dense-below=135", "moba:block=64,top=1,dense-below=135",
        "infllm-v2:block=64,top=0,sinks=0,window=1,dense-below=135"}) {
    const HostSelection selection = selected(problem, {.options = options});
    std::int64_t of_short = 0, of_long = 0;  // pairs that are left out of documents 65 … 198 and 323 … 554
    for (std::int64_t q = 65; q < 199; ++q)
      for (std::int64_t k = 65; k <= q; ++k) of_short += selection.allows(0, q, k) ? 0 : 1;
    for (std::int64_t q = 323; q < 555; ++q)
      for (std::int64_t k = 323; k <= q; ++k) of_long += selection.allows(0, q, k) ? 0 : 1;
    EXPECT_EQ(of_short, 0) << options;
    EXPECT_GT(of_long, 0) << options;
  }
}

TEST(PackedDocuments, HaveThePredictedDensityWhereTheyBeginWithABlock) {
  const auto problem = AttentionProblem::random(of_documents, "documents:0,128,448", DType::f32, 1.5);
  const std::vector<std::int64_t> starts{0, 128, 448};
  double all = 0;
  for (const std::int64_t of_document : {128, 320, 107}) all += 0.5 * double(of_document * (of_document + 1));
  for (const char* options :
       {"vertical-slash:verticals=0,slashes=1",
        "vertical-slash:verticals=0,slashes=2,local=2,dense-below=110", "xattention:threshold=1",
        "xattention:threshold=0.1,block=64,dense-below=400", "moba:block=64,top=2",
        "moba:block=64,top=1,dense-below=200", "infllm-v2:block=64,top=1,sinks=0,window=1",
        "infllm-v2:block=64,top=0,sinks=3,window=70"}) {
    const HostSelection selection = selected(problem, {.options = options});
    const auto pairs =
        static_cast<double>(ExactPairs(selection).pairs()) / double(selection.batch * selection.heads);
    EXPECT_NEAR(
        sparsity::predicted_density(sparsity::PatternOptions::parse(options), of_documents.tokens, starts),
        pairs / all, 1e-9)
        << options;
  }
}

/// Kernels that start while it lives, with the copies and fills that are kernels.
class KernelsStarted : public ToolNotes<KernelsStarted> {
 public:
  KernelsStarted() {
    call_back([](const char* label, std::uint32_t, std::uint64_t*) { note(label); });
  }
  ~KernelsStarted() { call_back(nullptr); }

 private:
  static void call_back(Kokkos_Profiling_beginFunction begin) {
    namespace tools = Kokkos::Tools::Experimental;
    tools::set_begin_parallel_for_callback(begin);
    tools::set_begin_parallel_reduce_callback(begin);
    tools::set_begin_parallel_scan_callback(begin);
  }
};

TEST(PackedDocuments, AreExactEachByItself) {
  const std::vector<std::int64_t> starts = short_documents(40);
  const auto problem = AttentionProblem::random(
      {.tokens = starts.back(), .head_dim = 32, .batch = 1, .heads = 2, .kv_heads = 1},
      fmt::format("documents:{}", fmt::join(starts.begin(), starts.end() - 1, ",")), DType::f32, 1.5);
  for (const char* options : {"vertical-slash:recall=0.5", "moba:block=64,top=2"})
    expect_exact_in_documents<float>(problem,
                                     {.options = options,
                                      .topology = Topology::uniform(2, 2),
                                      .layout = Layout::parse("block-striped:64")},
                                     {0, 1, 29, 30, 31, 39}, options);
}

TEST(PackedDocuments, AreAThousandInOneSequence) {
  std::vector<std::int64_t> starts;
  for (std::int64_t start = 0; std::ssize(starts) < 1000; start += 1 + std::ssize(starts) % 4)
    starts.push_back(start);
  const AttentionShape of{
      .tokens = starts.back() + 300, .head_dim = 16, .batch = 1, .heads = 2, .kv_heads = 1};
  const auto problem =
      AttentionProblem::random(of, fmt::format("documents:{}", fmt::join(starts, ",")), DType::f32, 1.5);
  for (const char* options : {"vertical-slash:recall=0.5", "xattention:block=64,stride=16,threshold=0.5",
                              "moba:block=64,top=2", "infllm-v2:block=64,top=1,sinks=0,window=1"})
    expect_exact<float>(problem,
                        {.options = options,
                         .topology = Topology::uniform(2, 2),
                         .layout = Layout::parse("block-striped:64")},
                        options);

  // As many kernels select for a thousand documents as for two.
  const auto two = AttentionProblem::random(of, "documents:0,1500", DType::f32, 1.5);
  for (const char* options : {"vertical-slash:recall=0.5", "xattention:block=64,stride=16,threshold=0.5",
                              "moba:block=64,top=2", "infllm-v2:block=64,top=1,sinks=0,window=1"}) {
    const auto kernels = [&](const AttentionProblem& of_documents) {
      const KernelsStarted started;
      selected(of_documents, {.options = options});
      return started.labels();
    };
    EXPECT_FALSE(kernels(problem).empty());
    EXPECT_EQ(kernels(problem), kernels(two)) << options;
  }
}

}  // namespace
}  // namespace annulus::test
