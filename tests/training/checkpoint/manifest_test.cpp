// A manifest that says what cannot be is refused, whatever its checksum says.
#include "training/checkpoint/manifest.hpp"

#include <gtest/gtest.h>

#include "support/error_text.hpp"
#include "training/io/crc32.hpp"

namespace annulus::checkpoint {
namespace {

using testing::HasSubstr;

Manifest sound() {
  Manifest manifest;
  manifest.creator = "annulus";
  manifest.progress.step = 7;
  manifest.progress.computed_with = {{"the threads of a rank", "2"}};
  manifest.block = 4;
  manifest.tensors = {{"a", {2, 3}}, {"b", {5}}};
  const auto piece = [](std::size_t tensor, std::int64_t first, std::int64_t count) {
    TensorPiece piece{.tensor = tensor, .first = first, .count = count, .checksums = {}};
    for (auto& crcs : piece.checksums) crcs.assign(static_cast<std::size_t>((count + 3) / 4), 9u);
    return piece;
  };
  manifest.parts = {{part_file(0, 2), 100, {piece(0, 0, 6), piece(1, 0, 1)}},
                    {part_file(1, 2), 100, {piece(1, 1, 4)}}};
  return manifest;
}

/// What is said of a manifest with other text, under a checksum that fits.
std::string said_of(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  text.replace(at, from.size(), to);
  const std::string rest = text.substr(text.find('\n') + 1);
  text = fmt::format("{{\"crc32\":{:10},\n{}", io::crc32_of(std::span<const char>(rest)), rest);
  return error_text([&] { Manifest::parse(text, "manifest.json"); });
}
std::string said_of(const Manifest& manifest) {
  return error_text([&] { Manifest::parse(manifest.to_text(), "manifest.json"); });
}

TEST(Manifest, IsReadAsItWasWritten) {
  const std::string text = sound().to_text();
  const Manifest read = Manifest::parse(text, "manifest.json");
  EXPECT_EQ(read.to_text(), text);
  EXPECT_EQ(read.progress.step, 7);
  EXPECT_EQ(read.progress.computed_with, sound().progress.computed_with);
  EXPECT_EQ(read.tensors, sound().tensors);
  EXPECT_EQ(read.parts[1].pieces[0].first, 1);
}

TEST(Manifest, ThatIsDamagedOrForeignIsRefused) {
  const std::string text = sound().to_text();
  for (const std::string& damaged : {text.substr(0, text.size() / 2), std::string()})
    EXPECT_THAT(error_text([&] { Manifest::parse(damaged, "manifest.json"); }),
                mentions("manifest.json", "damaged or truncated", "--resume"));
  const struct {
    const char *from, *to, *said;
  } cases[] = {{"annulus-checkpoint", "other", "its format is 'other'"},
               {"\"version\":3", "\"version\":4", "checkpoint version 4, this program reads 3"},
               {"\"config\"", "\"confit\"", "'config' is missing"},
               {"\"step\":7", "\"step\":-7", "'step' is no whole number"},
               {"\"step\":7", "\"step\":18446744073709551615", "'step'"},
               {"\"block\":4", "\"block\":0", "'block'"},
               {"\"block\":4", "\"block\":1099511627776", "'block'"},  // they fit into memory
               {"F32", "F16", "not F32"},
               {"\"the threads of a rank\":\"2\"", "\"the threads of a rank\":2", "'computed_with'"},
               {"{\"the threads of a rank\":\"2\"}", "[]", "'computed_with'"},
               {"\"computed_with\"", "\"of_another_version\"", "no error"},
               {"[2,3]", "[4611686018427387904,3]", "'shape'"},
               {"[2,3]", "[2305843009213693,3000000]", "too large"},
               {"}", "", "no JSON"}};
  for (const auto& [from, to, said] : cases) EXPECT_THAT(said_of(text, from, to), HasSubstr(said));
}

TEST(Manifest, ThatLeadsOutOfItsFolderIsRefused) {
  for (const char* file : {"../part-00000", "/etc/passwd", "part-/../../x", "manifest.json", ""}) {
    Manifest manifest = sound();
    manifest.parts[0].file = file;
    EXPECT_THAT(said_of(manifest), HasSubstr("is not the name of a part in this folder")) << file;
  }
  Manifest manifest = sound();
  manifest.parts[1].file = manifest.parts[0].file;
  EXPECT_THAT(said_of(manifest), HasSubstr("two parts are named"));
}

TEST(Manifest, ThatDoesNotHaveEveryElementOnceIsRefused) {
  using Change = void (*)(Manifest&);
  for (const auto& [change, said] : {
           std::pair<Change, const char*>([](Manifest& m) { m.parts[1].pieces[0].first = 0; },
                                          "tensor b is not there just once"),
           {[](Manifest& m) { m.parts.pop_back(); }, "the parts have 1 elements of tensor b, which has 5"},
           {[](Manifest& m) { m.parts[1].pieces[0].tensor = 2; }, "a tensor that is not there"},
           {[](Manifest& m) { m.parts[0].pieces[0].checksums[1].pop_back(); },
            "1 checksums of a piece with 2"},
           {[](Manifest& m) { m.tensors[1].name = "a"; }, "two tensors are named a"},
       }) {
    Manifest manifest = sound();
    change(manifest);
    EXPECT_THAT(said_of(manifest), HasSubstr(said));
  }
}

TEST(Manifest, NestedWithoutEndIsNamed) {
  EXPECT_THAT(said_of(sound().to_text(), "\"block\":4", "\"block\":" + std::string(100000, '[')),
              mentions("manifest.json", "nested more than"));
}

}  // namespace
}  // namespace annulus::checkpoint
