#include "eval/samples/sample_set.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "training/data/shard.hpp"
#include "training/io/json_lines.hpp"
#include "training/io/new_folder.hpp"

namespace annulus::eval {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* list_name = "samples.jsonl";
constexpr const char* list_format = "annulus-samples";
constexpr int list_version = 1;

/// Samples one behind the other, and a token that closes them: the sequence of the last one has a token
/// behind it, too.
class SampleStream {
 public:
  SampleStream(const SampleGroup& group, SampleShard& shard, std::int32_t end)
      : group_(group), shard_(shard), end_(end) {}

  std::int64_t tokens() const { return count() * group_.tokens + 1; }
  std::vector<std::int64_t> documents() const {
    std::vector<std::int64_t> starts;
    for (std::int64_t i = 0; i <= count(); ++i) starts.push_back(i * group_.tokens);
    return starts;
  }

  /// Is asked for tokens once, in order.
  void read(std::int64_t start, std::span<std::int32_t> out) {
    for (std::int32_t& id : out) {
      const std::int64_t in_sample = start++ % group_.tokens;
      if (in_sample == 0 && std::ssize(answers_) < count()) next_sample();
      id = start == tokens() ? end_ : sample_.ids[static_cast<std::size_t>(in_sample)];
    }
  }

  void read_mask(std::int64_t start, std::span<std::uint8_t> out) const {
    for (std::uint8_t& counts : out) {
      const auto index = static_cast<std::size_t>(start / group_.tokens);
      const std::int64_t in_sample = start++ % group_.tokens;
      counts =
          index < answers_.size() && in_sample >= answers_[index].first && in_sample < answers_[index].second;
    }
  }

 private:
  std::int64_t count() const { return std::ssize(group_.samples); }

  void next_sample() {
    const std::int64_t index = std::ssize(answers_);
    sample_ = group_.compose(index);
    ANNULUS_ASSERT(std::ssize(sample_.ids) == group_.tokens && sample_.answer_begin > 0);
    answers_.emplace_back(sample_.answer_begin, sample_.answer_end);
    shard_.samples[static_cast<std::size_t>(index)].answer = sample_.answer;
  }

  const SampleGroup& group_;
  SampleShard& shard_;
  std::int32_t end_;
  Sample sample_;
  std::vector<std::pair<std::int64_t, std::int64_t>> answers_;  // of the samples so far
};

SampleShard write_group(const fs::path& folder, const data::Tokenizer& tokenizer, const SampleGroup& group,
                        bool loss_mask) {
  SampleShard shard{
      .file = fmt::format("length-{:07}.h5", group.tokens), .tokens = group.tokens, .samples = group.samples};
  SampleStream stream(group, shard, static_cast<std::int32_t>(tokenizer.identity().end_of_document));
  const auto read = [&](std::int64_t start, std::span<std::int32_t> out) { stream.read(start, out); };
  data::ShardSource<std::uint8_t> mask;
  if (loss_mask)
    mask = [&](std::int64_t start, std::span<std::uint8_t> out) { stream.read_mask(start, out); };
  const std::vector<std::int64_t> documents = stream.documents();
  const data::ShardHeader header =
      data::write_shard(folder / shard.file, tokenizer, stream.tokens(), read, documents, mask);
  shard.checksum = header.checksum;
  shard.loss_mask_checksum = header.loss_mask_checksum;
  return shard;
}

void check_shard(const fs::path& list, const fs::path& folder, const SampleShard& shard,
                 const data::TokenizerIdentity& tokenizer) {
  const data::ShardHeader header = data::TokenShard::open(folder / shard.file).header();
  require(header.checksum == shard.checksum && header.loss_mask_checksum == shard.loss_mask_checksum &&
              header.tokens == std::ssize(shard.samples) * shard.tokens + 1,
          "'{}' is not the shard that '{}' describes: make the samples again, or copy the whole folder",
          header.path, list.string());
  require(header.tokenizer == tokenizer, "'{}' has another tokenizer than the other shards of '{}'",
          header.path, list.string());
}

}  // namespace

void write_samples(const fs::path& folder, const data::Tokenizer& tokenizer,
                   const std::vector<SampleGroup>& groups, const json& made_by, bool loss_mask) {
  io::NewFolder made(folder);
  std::vector<SampleShard> shards;
  json of_shards = json::array();
  for (const SampleGroup& group : groups) {
    const SampleShard& shard =
        shards.emplace_back(write_group(made.temporary(), tokenizer, group, loss_mask));
    of_shards.push_back(
        {{"file", shard.file},
         {"tokens", shard.tokens},
         {"samples", shard.samples.size()},
         {"checksum", shard.checksum},
         {"loss_mask_checksum", shard.loss_mask_checksum ? json(*shard.loss_mask_checksum) : json()}});
  }
  io::JsonLinesWriter list(made.temporary() / list_name);
  list.write(
      {{"format", list_format}, {"version", list_version}, {"shards", of_shards}, {"made_by", made_by}});
  for (const SampleShard& shard : shards)
    for (std::size_t i = 0; i < shard.samples.size(); ++i) {
      const SampleFacts& sample = shard.samples[i];
      list.write({{"file", shard.file},
                  {"sample", i},
                  {"kind", sample.kind},
                  {"tokens", shard.tokens},
                  {"depth", sample.depth ? json(*sample.depth) : json()},
                  {"answer", sample.answer}});
    }
  made.commit();
}

SampleSet read_samples(const fs::path& folder) {
  const fs::path list = folder / list_name;
  std::error_code none;
  require(fs::exists(list, none), "'{}' holds no samples: it has no {}; make some with annulus-eval make",
          folder.string(), list_name);
  SampleSet set{.folder = folder};
  io::read_json_lines(list, [&](const json& record, std::int64_t line) {
    const std::string where = fmt::format("'{}', line {}", list.string(), line);
    if (line == 1) {
      require(record.at("format") == list_format && record.at("version") == list_version,
              "{}: it is no list of samples of version {}: make the samples again (annulus-eval make)", where,
              list_version);
      for (const json& shard : record.at("shards")) {
        const json& mask = shard.at("loss_mask_checksum");
        require(is_plain_name(shard.at("file").get<std::string>()) && shard.at("tokens") > 1,
                "{}: {} is no shard of the folder: make the samples again", where, shard.dump());
        set.shards.push_back(
            {.file = shard.at("file"),
             .tokens = shard.at("tokens"),
             .checksum = shard.at("checksum"),
             .loss_mask_checksum = mask.is_null() ? std::nullopt : std::optional<std::uint32_t>(mask)});
      }
      return;
    }
    const auto shard =
        std::ranges::find(set.shards, record.at("file").get<std::string>(), &SampleShard::file);
    require(
        shard != set.shards.end() && record.at("sample") == shard->samples.size(),
        "{}: the samples of each shard of line 1 stand here in order, and {} is not the next one: make the "
        "samples again",
        where, record.dump());
    const json& depth = record.at("depth");
    shard->samples.push_back({.kind = record.at("kind"),
                              .depth = depth.is_null() ? std::nullopt : std::optional<double>(depth),
                              .answer = record.at("answer")});
  });
  require(!set.shards.empty(), "'{}' lists no shards: make the samples again", list.string());
  set.tokenizer = data::TokenShard::open(folder / set.shards.front().file).header().tokenizer;
  for (const SampleShard& shard : set.shards) check_shard(list, folder, shard, set.tokenizer);
  return set;
}

}  // namespace annulus::eval
