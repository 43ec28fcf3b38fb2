#include "training/io/event_file.hpp"

#include <nlohmann/json.hpp>

#include "support/error_text.hpp"
#include "support/temporary_folder.hpp"
#include "training/io/atomic.hpp"

namespace annulus::io {
namespace {

std::string contents_of_only_file(const test::TemporaryFolder& folder) {
  std::string contents;
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    EXPECT_TRUE(entry.path().filename().string().starts_with("events.out.tfevents.")) << entry.path();
    contents = read_text(entry.path());
    ++files;
  }
  EXPECT_EQ(files, 1);
  return contents;
}

std::uint64_t number_at(const std::string& bytes, std::size_t at, std::size_t size) {
  std::uint64_t value = 0;
  for (std::size_t i = size; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes.at(at + i));
  return value;
}

// The messages of the records; their frames must be whole.
std::vector<std::string> events_in(const std::string& file) {
  std::vector<std::string> events;
  for (std::size_t at = 0; at < file.size();) {
    const std::uint64_t size = number_at(file, at, 8);
    events.push_back(file.substr(at + 12, size));
    at += 16 + size;
    EXPECT_LE(at, file.size());
  }
  return events;
}

TEST(EventFile, HasTheBytesOfTensorBoard) {
  const test::TemporaryFolder folder;
  EventFile file(folder.path(), 0);
  const std::string start = contents_of_only_file(folder);
  // A length of 26 bytes and its masked CRC-32C, as TensorBoard's own code computes it.
  EXPECT_EQ(number_at(start, 0, 8), 26u);
  EXPECT_EQ(number_at(start, 8, 4), 0x2dd89b12u);
  file.write(7, "train", {{"loss", 2.5}, {"name", "not a number"}, {"memory", {{"total", 3}}}});
  const std::vector<std::string> events = events_in(contents_of_only_file(folder));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_TRUE(events[0].ends_with("\x1a\rbrain.Event:2"));
  // Behind wall_time (field 1, nine bytes): step 7 and a summary of two scalars.
  EXPECT_EQ(events[1].substr(9), std::string("\x10\x07\x2a\x28"
                                             "\x0a\x11\x0a\x0atrain/loss\x15\x00\x00\x20\x40"
                                             "\x0a\x13\x0a\x0cmemory/total\x15\x00\x00\x40\x40",
                                             44));
}

}  // namespace
}  // namespace annulus::io
