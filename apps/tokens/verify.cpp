#include <annulus/data/verify.hpp>

#include <fmt/format.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <vector>

#include <annulus/base/printable.hpp>

#include "commands.hpp"
#include "common/process.hpp"

namespace annulus::tokens {

namespace {

/// Checks one shard; tells what is wrong instead of throwing, so that the others are checked too.
bool verify(const std::filesystem::path& path) {
  try {
    const data::TokenShard shard = data::TokenShard::open(path);
    data::verify_shard(shard);
    fmt::print("ok   {}: {} tokens, {} documents\n", printable(path.string()), shard.header().tokens,
               shard.header().documents);
    return true;
  } catch (const std::exception& error) {
    fmt::print("bad  {}\n", printable_message(error.what()));
    return false;
  }
}

int run(const std::vector<std::filesystem::path>& paths) {
  int bad = 0;
  for (const auto& path : data::find_shards(paths)) bad += verify(path) ? 0 : 1;
  if (bad > 0) app::say(fmt::format("annulus-tokens: {} bad shards", bad));
  return bad > 0 ? 1 : 0;
}

}  // namespace

void add_verify(CLI::App& app, Command& command) {
  const auto paths = std::make_shared<std::vector<std::filesystem::path>>();
  CLI::App* verify = app.add_subcommand(
      "verify", "Check shards in full: format, sizes, offsets, ids, checksums; exit status 1 if bad");
  verify->add_option("paths", *paths, "Shards, or folders of shards")->required();
  verify->callback([paths, &command] { command = [paths] { return run(*paths); }; });
}

}  // namespace annulus::tokens
