// Parquet files in apps/tokens/pack_tokenizer_json.py, with the Python packages pyarrow and tokenizers.
#include "training/data/tokenizer_json.hpp"

namespace annulus::data {
namespace {

/// Parquet files that the package pyarrow writes.
class ParquetFiles : public TokenizerJson {
 protected:
  void SetUp() override {
    TokenizerJson::SetUp();
    if (IsSkipped()) return;
    if (run_shell(python_ + " -c 'import pyarrow.parquet'").status != 0)
      GTEST_SKIP() << "NOT TESTED: Parquet of pack_tokenizer_json.py, as " << python_
                   << " has no package pyarrow (pip install pyarrow)";
  }

  /// Writes 'in/NAME' of columns as Python says them, in groups of two rows.
  void write(const std::string& name, const std::string& columns) const {
    fs::create_directories((folder_.path() / "in" / name).parent_path());
    folder_.write("write.py", "import pyarrow as pa, pyarrow.parquet\npa.parquet.write_table(pa.table({" +
                                  columns + "}), 'in/" + name + "', row_group_size=2)\n");
    output_of(run_shell("cd " + folder_.path().string() + " && " + python_ + " write.py"));
  }
};

TEST_F(ParquetFiles, DocumentsAreThoseOfTheColumn) {
  write("a.parquet",
        "'id': [1, 2, 3], 'text': ['one', 'two', ''], 'body': pa.array(['x', 'y', 'x']).dictionary_encode()");
  write("sub/c.PARQUET", "'text': pa.array(['three'], pa.large_string()), 'body': ['z']");
  write("sub/d.parquet", "'text': pa.array([], pa.string()), 'body': pa.array([], pa.string())");
  add("b.txt", "between");
  const std::string result = output_of(pack("plain.json", "out in"));
  EXPECT_THAT(documents_in("out"), ElementsAre("one<256>", "two<256>", "between<256>", "three<256>"));
  EXPECT_THAT(result, mentions("0 binary or not UTF-8, 1 empty, 0 bad lines"));
  ASSERT_EQ(pack("plain.json", "--column body body in --extensions parquet").status, 0);
  EXPECT_THAT(documents_in("body"), ElementsAre("x<256>", "y<256>", "x<256>", "z<256>"));
}

TEST_F(ParquetFiles, ConversationsAreThoseOfTheTemplate) {
  write("a.parquet",
        "'talk': [[{'from': 'user', 'value': 'q', 'at': 1.5}, {'from': 'assistant', 'value': 'ab', 'at': "
        "None}], None]");
  folder_.write(
      "chat.json",
      R"({"messages": "talk", "role": "from", "content": "value", "roles": {"user": {"before": "<tool>"},
    "assistant": {"before": "<tool>", "counts": true}}})");
  const std::string arguments = "--special-tokens token --chat-template chat.json out in";
  EXPECT_THAT(output_of(pack("plain.json", arguments), 1),
              mentions("a.parquet', row 2: it has no array \"talk\""));
  output_of(pack("plain.json", "--bad-lines skip " + arguments));
  EXPECT_THAT(documents_in("out"), ElementsAre("<258>q<258>ab<256>"));
}

TEST_F(ParquetFiles, GoOnBehindTheLastShard) {
  write("a.parquet", "'text': ['first', 'second', None, 'last']");
  EXPECT_THAT(output_of(pack("plain.json", "--shard-tokens 6 out in"), 1), mentions("a.parquet', row 3: "));
  const auto when = fs::last_write_time(folder_.path() / "out/tokens-000000.h5");
  EXPECT_THAT(output_of(pack("plain.json", "--shard-tokens 6 --bad-lines skip --column text out in"), 1),
              mentions("settings of the tokenizer", "column text"));
  output_of(pack("plain.json", "--shard-tokens 6 --bad-lines skip out in"));
  EXPECT_EQ(fs::last_write_time(folder_.path() / "out/tokens-000000.h5"), when);
  EXPECT_THAT(documents_in("out"), ElementsAre("first<256>", "second<256>", "last<256>"));
}

TEST_F(ParquetFiles, WhatIsWrongIsNamed) {
  write("a.parquet", "'id': [1, 2], 'messages': [['x'], ['y']]");
  folder_.write("chat.json", R"({"roles": {"user": {"counts": true}}})");
  for (const auto& [arguments, expected] :
       {std::array<std::string, 2>{"", "it has no column 'text', but id, messages: name one with --column"},
        {"--column id", "its column 'id' holds int64 and no strings"},
        {"--chat-template chat.json",
         "its column 'messages' holds list<element: string> "
         "and no lists of messages with role and content"}}) {
    const std::string result = output_of(pack("plain.json", arguments + " out in"), 1);
    EXPECT_THAT(result, mentions("in/a.parquet'", expected));
    EXPECT_THAT(result, testing::Not(mentions("Traceback")));
  }
  add("a.parquet", "PAR1, as it says");
  EXPECT_THAT(output_of(pack("plain.json", "out in"), 1), mentions("in/a.parquet' cannot be read"));
}

using PackageOfParquet = TokenizerJson;
TEST_F(PackageOfParquet, IsNamedWhereItIsMissing) {
  add("a.parquet", "PAR1");
  fs::create_directories(folder_.path() / "none/pyarrow");
  folder_.write("none/pyarrow/__init__.py", "raise ImportError('not here')");
  EXPECT_THAT(output_of(run_shell("cd " + folder_.path().string() +
                                  " && PATH=$PWD/bin:$PATH PYTHONPATH=$PWD/none:$PYTHONPATH " + python_ +
                                  " " ANNULUS_PACK_TOKENIZER_JSON " plain.json '<|endoftext|>' out in"),
                        1),
              mentions("in/a.parquet'", "the package pyarrow", "not here", "pip install pyarrow"));
}

}  // namespace
}  // namespace annulus::data
