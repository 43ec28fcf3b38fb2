#include "train/restore.hpp"

#include <fmt/format.h>

#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <annulus/base/error.hpp>
#include <annulus/checkpoint/reader.hpp>
#include <annulus/comm/agreement.hpp>
#include <annulus/io/progress_line.hpp>

#include "train/checkpoint_parts.hpp"
#include "train/share_text.hpp"
#include "train/snapshot.hpp"

namespace annulus::train {

using checkpoint::Checkpoint;

namespace {

/// Reads this rank's share; why that is not possible, or nothing.
std::string read_share(comm::Communicator& world, Learner& learner, const Checkpoint& from) {
  try {
    const std::vector<checkpoint::Slice> share = learner.state().share();
    std::optional<io::ProgressLine> line;
    if (world.rank() == 0)
      line.emplace(fmt::format("loading {}", from.path().filename().string()),
                   Snapshot::bytes(elements_of(share)));
    load_slices(from, learner.map(), share, learner.state().master_buffers(), [&](std::int64_t bytes) {
      if (line) line->show(bytes);
    });
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

}  // namespace

checkpoint::Progress restore(comm::Communicator& world, Learner& learner, RunFolder* folder) {
  for (;;) {
    const std::string path = share_text(
        world, folder != nullptr ? std::filesystem::absolute(folder->resume_from()->path()).string() : "");
    std::optional<Checkpoint> own;  // rank 0 has opened it
    std::string problem;
    if (folder == nullptr) try {
        own.emplace(path, Checkpoint::Check::manifest);
      } catch (const Error& error) {
        problem = fmt::format(
            "{} (rank 0 has read it: run.folder and --resume are to lie where all machines of the run see "
            "them)",
            error.what());
      }
    comm::throw_together(world, problem);
    const Checkpoint& from = own ? *own : *folder->resume_from();
    try {
      from.require_tensors(tensors_of(learner.map()));
    } catch (const Error& error) {
      problem = error.what();
    }
    comm::throw_together(world, problem);
    problem = read_share(world, learner, from);
    try {
      comm::throw_together(world, problem);
    } catch (const Error& damage) {
      problem.clear();
      if (folder != nullptr) try {
          folder->pass_over(damage.what());
        } catch (const Error& error) {
          problem = error.what();
        }
      comm::throw_together(world, problem);
      continue;
    }
    learner.state().restored(from.progress().step);
    return from.progress();
  }
}

}  // namespace annulus::train
