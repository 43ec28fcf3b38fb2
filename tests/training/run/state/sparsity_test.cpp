// attention.sparsity: dense updates and layers, density, and what it does not join with.
#include "training/io/hdf5_files/hdf5.hpp"
#include "training/run/tiny_run.hpp"

namespace annulus::training::test {
namespace {

class SparseTraining : public TinyTest {
 protected:
  Config config(const std::string& name) const {
    return tiny_.config(
        name,
        {"model.layers=2", "data.sequence_length=150", "train.steps=4", "attention.layout=block-striped:64",
         "attention.sparsity=vertical-slash:verticals=6,slashes=1,window=20", "sparsity.dense_updates=1"});
  }
  /// The configuration with the mask of documents of 1 to 140 tokens, most of them longer than a block.
  Config packed(const std::string& name, const std::string& pattern) const {
    std::vector<std::int64_t> documents;
    for (const std::int64_t length : {140, 1, 90, 30, 120}) documents.insert(documents.end(), 8, length);
    return with(config(name),
                {"data.shards=" + tiny_.shard("documents.h5", documents), "attention.mask=documents",
                 "attention.sparsity=" + pattern, "sparsity.dense_updates=0", "sparsity.audit_every=1",
                 "train.micro_batches=4", "train.sequences_per_pass=2"});
  }
  /// The densities of the steps on three ranks, whose losses are those of one.
  static std::vector<double> run_alike(const Config& one, const Config& several) {
    run(1, one);
    run(3, several);
    EXPECT_LT(largest_difference(losses(one), losses(several)), 2e-5);
    return metric(several, "attention_density");
  }
};

TEST_F(SparseTraining, HasTheDensityOfItsSelectionOnAnyRanks) {
  const Config one = config("one"), several = config("several");
  // One slash of three: 64 · 65 / 2 pairs twice and 22 · 23 / 2 of 150 · 151 / 2; columns add less than 6 ·
  // 150.
  const std::vector<double> densities = run_alike(one, several);
  ASSERT_EQ(densities.size(), 4u);
  EXPECT_EQ(densities[0], 1) << "the first update is dense";
  const double slash = (64 * 65 + 22 * 23 / 2) / (150 * 151 / 2.0);
  for (std::size_t step = 1; step < densities.size(); ++step) {
    EXPECT_GT(densities[step], slash);
    EXPECT_LT(densities[step], slash + 6 * 150 / (150 * 151 / 2.0));
  }
  EXPECT_THAT(metric(several, "forward_attention"), Each(testing::DoubleNear(1, 1e-12)));

  const Config half = with(
      config("half"), {"sparsity.dense_layers=['0']", "sparsity.dense_updates=0", "memory.recompute=full"});
  run(2, half);
  const double density = metric(half, "attention_density").front();
  EXPECT_GT(density, 0.5 + 0.5 * slash);
  EXPECT_LT(density, 1);
  EXPECT_NEAR(metric(half, "forward_attention").front(), 2, 1e-12);

  const Config early = copy(half, "early", {"memory.recompute=sequence-selective", "sparsity.audit_every=1"});
  run(2, early);
  EXPECT_GT(metric(early, "forward_attention").front(), 1.1);
  EXPECT_LT(metric(early, "forward_attention").front(), 1.5);
  for (const double recall : metric(early, "attention_recall")) {
    EXPECT_GT(recall, 2 * density - 1) << "the share of the pairs of the sparse layer";
    EXPECT_LE(recall, 1);
  }
  for (const double ratio : metric(early, "attention_computation_ratio")) {
    EXPECT_GT(ratio, 0);
    EXPECT_LE(ratio, 1);
  }
}

TEST_F(SparseTraining, KeptColumnsChangeNoBit) {
  for (const char* recompute : {"none", "full", "sequence-selective"}) {
    Config again = config(std::string("again-") + recompute);
    again.attention.schedule = "burst";
    again.memory.recompute = {recompute};
    Config kept = again;
    kept.run.folder += "-kept";
    kept.sparsity.keep_columns = true;
    run(3, again);
    run(3, kept);
    EXPECT_EQ(losses(again), losses(kept)) << recompute;
    EXPECT_EQ(metric(again, "grad_norm"), metric(kept, "grad_norm")) << recompute;
  }
}

TEST_F(SparseTraining, SelectsBlocksForBlocksOfQueriesOnAnyRanks) {
  const Config one = with(config("one"), {"attention.sparsity=xattention:block=64,stride=8,threshold=0.5",
                                          "sparsity.dense_updates=0", "sparsity.audit_every=1"}),
               several =
                   copy(one, "several", {"attention.layout=zigzag", "memory.recompute=sequence-selective"});
  const std::vector<double> densities = run_alike(one, several);
  ASSERT_EQ(densities.size(), 4u);
  const double own = (2 * 64 * 65 / 2 + 22 * 23 / 2) / (150 * 151 / 2.0);
  EXPECT_EQ(metric(one, "attention_density"), densities);
  for (const double density : densities) {
    EXPECT_GT(density, own);
    EXPECT_LT(density, 1);
  }
  for (const double recall : metric(several, "attention_recall")) {
    EXPECT_GT(recall, 0.5);
    EXPECT_LT(recall, 1);
  }
}

TEST_F(SparseTraining, SelectsBlocksForEachQueryOnAnyRanks) {
  const Config one =
                   with(config("one"), {"attention.sparsity=moba:block=64,top=2", "sparsity.audit_every=1"}),
               several =
                   copy(one, "several", {"attention.layout=zigzag", "memory.recompute=sequence-selective"});
  run_alike(one, several);
  // Own blocks, and one more of 64 keys for the queries from 64 on.
  const double pairs = 2 * 64 * 65 / 2 + 22 * 23 / 2 + (150 - 64) * 64, all = 150 * 151 / 2.0;
  for (const Config& of : {one, several})
    EXPECT_THAT(metric(of, "attention_density"),
                testing::ElementsAre(1, testing::DoubleNear(pairs / all, 1e-12),
                                     testing::DoubleNear(pairs / all, 1e-12),
                                     testing::DoubleNear(pairs / all, 1e-12)));
}

TEST_F(SparseTraining, SelectsForEachDocumentOnAnyRanks) {
  int number = 0;
  for (const char* pattern : {"vertical-slash:recall=0.5,window=20",
                              "vertical-slash:verticals=2,slashes=1,window=20,dense-below=30",
                              "xattention:block=64,stride=8,threshold=0.5", "moba:block=64,top=1",
                              "infllm-v2:block=64,top=0,sinks=0,window=1,stride=8"}) {
    SCOPED_TRACE(pattern);
    const Config one = packed(fmt::format("one{}", number), pattern),
                 several = number++ % 2 == 0
                               ? copy(one, "several", {"attention.layout=zigzag", "memory.recompute=full"})
                               : copy(one, "several");
    const std::vector<double> densities = run_alike(one, several);
    EXPECT_THAT(metric(one, "attention_density"), testing::Pointwise(testing::DoubleNear(1e-3), densities));
    EXPECT_LT(densities.back(), 1);
    for (const double recall : metric(several, "attention_recall")) EXPECT_LE(recall, 1);
  }
}

TEST_F(SparseTraining, OfDocumentsGoesOnBitForBit) {
  int number = 0;
  for (const char* pattern : {"vertical-slash:recall=0.5,window=20", "moba:block=64,top=1"}) {
    SCOPED_TRACE(pattern);
    const Config whole = packed(fmt::format("whole{}", number++), pattern);
    run(2, whole);
    expect_same_when_resumed(whole, 2, copy(whole, "resumed"));
    EXPECT_LT(metric(whole, "attention_density").back(), 1);
  }
}

TEST_F(SparseTraining, GoesOnBitForBitAlsoInDenseUpdates) {
  int number = 0;
  for (const char* pattern :
       {"vertical-slash:verticals=6,slashes=1,window=20", "xattention:block=64,stride=8,threshold=0.5",
        "moba:block=64,top=2", "infllm-v2:block=64,top=0,sinks=1,window=1,stride=8"}) {
    const Config whole = with(
        config(fmt::format("whole{}", number++)),
        {fmt::format("attention.sparsity={}", pattern), "sparsity.dense_updates=2", "checkpoint.every=1"});
    run(2, whole);
    const std::vector<double> densities = metric(whole, "attention_density");
    ASSERT_EQ(densities.size(), 4u) << pattern;
    for (std::size_t step = 0; step < 4; ++step) EXPECT_EQ(densities[step] == 1, step < 2) << pattern;
    for (const int behind : {1, 3}) {  // before the last dense step, and among sparse ones
      SCOPED_TRACE(fmt::format("{} behind step {}", pattern, behind));
      const Config resumed = copy(whole, fmt::format("behind{}", behind));
      interrupt(whole, behind, resumed);
      EXPECT_EQ(run(2, resumed).first_step, behind);
      expect_same_bits(whole, resumed);
      EXPECT_EQ(metric(resumed, "attention_density"), densities);
    }
  }
}

/// The share of the pairs of documents, which begin at `starts` (closed by the tokens) in each sequence, that
/// `lists` selections of each sequence hold, by a layer's tensors of a dump.
double share_of_dump(const io::File& dump, const std::string& layer, std::uint64_t lists,
                     const std::vector<std::uint64_t>& starts) {
  const std::string of_queries = layer + ".selected_query_blocks", of_rows = layer + ".selected_blocks",
                    columns = layer + ".selected_columns";
  const bool by_distance = !dump.has(of_queries) && !dump.has(of_rows);
  const std::string name = by_distance            ? layer + ".selected_slashes"
                           : dump.has(of_queries) ? of_queries
                                                  : of_rows;
  const io::Extents extents = dump.dataset(name).extents();
  EXPECT_EQ(extents[1], lists);
  const std::uint64_t tokens = extents[2];
  EXPECT_EQ(tokens, starts.back());
  const auto bits = dump.read<std::uint8_t>(name),
             verticals = dump.has(columns) ? dump.read<std::uint8_t>(columns) : std::vector<std::uint8_t>();
  std::int64_t pairs = 0, all = 0;
  for (std::uint64_t list = 0; list < extents[0] * lists; ++list)
    for (std::size_t d = 0; d + 1 < starts.size(); ++d)
      for (std::uint64_t q = starts[d]; q < starts[d + 1]; ++q)
        for (std::uint64_t k = starts[d]; k <= q; ++k) {
          const int of_block = by_distance
                                   ? bits[list * tokens + (q / 64 - k / 64) * 64]
                                   : bits[(list * tokens + q) * extents[3] + k / 512] >> (k / 64 % 8) & 1;
          pairs += of_block | (verticals.empty() ? 0 : verticals[list * tokens + k]);
          ++all;
        }
  return double(pairs) / double(all);
}

TEST_F(SparseTraining, DumpsHoldThePairsThatWereComputedOnAnyRanks) {
  std::vector<std::int64_t> lengths;  // every sequence has the same two documents, which share a block
  for (int i = 0; i < 12; ++i) lengths.insert(lengths.end(), {10, 140});
  const std::string documents = tiny_.shard("dumped.h5", lengths);
  int number = 0;
  for (const auto& [pattern, lists] : {std::pair{"vertical-slash:verticals=6,slashes=1,window=20", 1u},
                                       {"xattention:block=64,stride=8,threshold=0.5", 2u},
                                       {"moba:block=64,top=1", 2u},
                                       {"infllm-v2:block=64,top=0,sinks=1,window=1,stride=8", 1u}}) {
    for (const bool packed : {false, true}) {
      SCOPED_TRACE(fmt::format("{}{}", pattern, packed ? " of documents" : ""));
      Config one = with(config(fmt::format("one{}", number++)),
                        {fmt::format("attention.sparsity={}", pattern), "train.steps=2",
                         "sparsity.dense_layers=['0']", "checkpoint.every=0"});
      if (packed) one = with(one, {"data.shards=" + documents, "attention.mask=documents"});
      const Config several = copy(one, "several", {"attention.layout=zigzag"});
      const auto dump_of = [&](int ranks, const Config& of) {
        const std::string path = tiny_.file(fmt::format("{} {}.h5", ranks, number)).string();
        run(ranks, of, {}, {}, {path, 2});
        return io::File::open(path);
      };
      const io::File dump = dump_of(1, one), of_several = dump_of(3, several);
      const std::vector<std::uint64_t> starts =
          packed ? std::vector<std::uint64_t>{0, 10, 150} : std::vector<std::uint64_t>{0, 150};
      const double share = share_of_dump(dump, "layers.1", lists, starts);
      EXPECT_EQ(share, share_of_dump(of_several, "layers.1", lists, starts));
      EXPECT_LT(share, 0.95);
      EXPECT_NEAR(metric(one, "attention_density").at(1), (1 + share) / 2, 1e-12);
      for (const std::string& name : dump.names())
        EXPECT_FALSE(name.starts_with("layers.0.selected")) << "of a dense layer";
    }
  }
}

TEST_F(SparseTraining, SaysWhatItDoesNotJoin) {
  const std::string base = config("wrong").to_toml();
  const struct {
    std::vector<std::string> changes;
    const char* said;
  } cases[] = {{{}, "no error"},
               {{"attention.mask=documents"}, "no error"},
               {{"attention.mask=documents",
                 "attention.sparsity=vertical-slash:verticals=6,slashes=0,local=0,window=20"},
                "use local=1 or more"},
               {{"attention.mask=window:9,0"}, "attention.mask = 'causal' or 'documents'"},
               {{"attention.mask=documents", "attention.layout=balanced"}, "attention.layout = 'balanced'"},
               {{"attention.sparsity=moba:dense-below=many"}, "'dense-below=many' needs a whole number"},
               {{"attention.sparsity=diagonal"}, "attention.sparsity = 'diagonal'"},
               {{"attention.sparsity=moba:block=100"}, "'block=100' needs a multiple of 64"},
               {{"attention.sparsity=xattention:stride=7"}, "stride=7 do not divide blocks of block=128"},
               {{"data.sequence_length=10"}, "longer than the sequence"},
               {{"attention.sparsity="}, "sparsity.dense_updates"},
               {{"sparsity.keep_columns=true"}, "no error"},
               {{"attention.sparsity=", "sparsity.dense_updates=0", "sparsity.keep_columns=true"},
                "without attention.sparsity"},
               {{"attention.sparsity=moba", "sparsity.keep_columns=true"}, "'moba' does not select"},
               {{"sparsity.dense_layers=['0-2']"}, "'0-2': give layers from 0 to 1"},
               {{"sparsity.dense_layers=['1-0']"}, "'1-0': a range begins at its lower layer, as '0-1'"},
               {{"attention.sparsity=", "sparsity.dense_updates=0", "sparsity.audit_every=5"}, "no error"}};
  for (const auto& [changes, said] : cases)
    EXPECT_THAT(error_text([&] { Config::parse(base, "run.toml", changes); }), HasSubstr(said));
}

}  // namespace
}  // namespace annulus::training::test
