#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "attention/sequence/block_list.hpp"
#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"

namespace annulus::detail {
namespace {

using test::TemporaryFolder;
using testing::HasSubstr;
using testing::StartsWith;
using Numbers = std::vector<std::int64_t>;

const std::string header = "annulus-block-mask 1\n";

BlockList read(const std::string& content, std::int64_t blocks) {
  const TemporaryFolder folder;
  return read_block_list(folder.write("list.txt", content), blocks, "mask");
}

/// The message for a bad file, which must begin with the context and the file; what follows that is returned.
std::string rejected(const std::string& content, std::int64_t blocks) {
  const TemporaryFolder folder;
  const std::string file = folder.write("list.txt", content);
  const std::string text = error_text([&] { read_block_list(file, blocks, "mask = 'blocks:…'"); });
  const std::string start = "mask = 'blocks:…': " + file;
  EXPECT_THAT(text, StartsWith(start));
  return text.substr(std::min(start.size(), text.size()));
}

TEST(BlockList, ReadsColumnsAndRanges) {
  const BlockList list = read(header + "blocks 4\n0: 0\n1: 0 1\n2:\n3: 0-1 3\nend\n", 4);
  EXPECT_EQ(list.row_starts, (Numbers{0, 1, 3, 3, 6}));
  EXPECT_EQ(list.columns, (Numbers{0, 0, 1, 0, 1, 3}));
}

TEST(BlockList, SkipsCommentsBlankLinesAndCarriageReturns) {
  const BlockList list = read(
      "# made by hand\r\n\r\nannulus-block-mask 1\r\nblocks\t2\r\n  # rows\r\n0:1\r\n\r\n 1 :\t0-1 \r\nend",
      2);
  EXPECT_EQ(list.row_starts, (Numbers{0, 1, 3}));
  EXPECT_EQ(list.columns, (Numbers{1, 0, 1}));
}

TEST(BlockList, ListOfNoBlocks) {
  EXPECT_EQ(read(header + "blocks 0\nend\n", 0).row_starts, (Numbers{0}));
}

TEST(BlockList, ErrorsNameFileAndLine) {
  const std::string rows = header + "blocks 3\n0: 0\n";
  const struct {
    std::string content;
    std::int64_t blocks;
    const char* says;  // behind the file
  } cases[] = {{"PK\x03\x04 zip\n", 4, ":1: is no block list"},
               {"annulus-block-mask 2\nblocks 4\n", 4, ":1: has version '2'"},
               {"annulus-block-mask\nblocks 4\n", 4, ":1: has version ''"},
               {header + "rows 4\n", 4, ":2: expected the line 'blocks COUNT'"},
               {header + "blocks four\n", 4, ":2: expected the line 'blocks COUNT'"},
               {header + "blocks 4 4\n", 4, ":2: expected the line 'blocks COUNT'"},
               {header + "blocks 5\n", 4, ":2: lists 5 × 5 blocks, but the sequence has 4"},
               {rows + "2: 0\n", 3, ":4: expected row 1, which starts with '1:'"},
               {rows + "0 1\n", 3, ":4: expected row 1"},
               {rows + "end\n", 3, ":4: expected row 1"},
               {rows + "# a comment counts as a line\n1: 3\n", 3, ":5: block column 3 is out of range"},
               {rows + "1: 0-3\n", 3, ":4: block column 3 is out of range"},
               {rows + "1: 1 0\n", 3, ":4: block column 0 comes again or after a larger one"},
               {rows + "1: 1 1\n", 3, ":4: block column 1 comes again"},
               {rows + "1: 0-1 1-2\n", 3, ":4: block column 1 comes again"},
               // Two lines that stand for 2³¹ columns, 16 GiB.
               {header + "blocks 2147483648\n0: 0-2147483647\n", std::int64_t{1} << 31,
                ":3: more than 67108864 blocks"},
               {"", 2, " ends behind line 0, before the header"},
               {header, 2, " ends behind line 1, before the line 'blocks COUNT'"},
               {header + "blocks 2\n0: 0\n", 2, " ends behind line 3, before row 1 of 2"},
               {header + "blocks 2\n0: 0\n1: 0", 2, " ends behind line 4, before the line 'end'"},
               {header + "blocks 1\n0: 0\n1: 0\nend\n", 1, ":4: expected the line 'end' after 1 rows"}};
  for (const auto& [content, blocks, says] : cases) EXPECT_THAT(rejected(content, blocks), StartsWith(says));
  for (const char* word : {"x", "-1", "1-", "2-1", "1,2", "0-x", "1.0"})
    EXPECT_THAT(rejected(rows + "1: " + word + "\n", 3), StartsWith(std::string(":4: '") + word + "'"));
}

TEST(BlockList, MissingFileAndFolder) {
  const TemporaryFolder folder;
  EXPECT_THAT(error_text([&] { read_block_list(folder.file("none.txt"), 2, "mask"); }),
              mentions("cannot open '" + folder.file("none.txt"), "No such file"));
  EXPECT_THAT(error_text([&] { read_block_list(folder.path().string(), 2, "mask"); }),
              HasSubstr("is a folder"));
  EXPECT_THAT(error_text([] { read_block_list("/dev/zero", 2, "mask"); }),
              HasSubstr("'/dev/zero' is no regular file"));
}

TEST(BlockList, ReadsWhatTheDocumentedPythonWriterWrites) {
  std::ifstream stream(ANNULUS_BLOCK_MASK_FORMAT);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const std::size_t begin = text.find("```python\n"), end = text.find("```", begin + 10);
  ASSERT_NE(end, std::string::npos) << ANNULUS_BLOCK_MASK_FORMAT << " has no Python example";
  const TemporaryFolder folder;
  const std::string list = folder.file("list.txt");
  const std::string script =
      folder.write("write.py", text.substr(begin + 10, end - begin - 10) + "write_block_mask('" + list +
                                   "', [[0], [], [0, 1, 3], [2, 3]])\n");
  ASSERT_EQ(std::system(("python3 " + script).c_str()), 0);
  const BlockList read = read_block_list(list, 4, "mask");
  EXPECT_EQ(read.row_starts, (Numbers{0, 1, 1, 4, 6}));
  EXPECT_EQ(read.columns, (Numbers{0, 0, 1, 3, 2, 3}));
}

}  // namespace
}  // namespace annulus::detail
