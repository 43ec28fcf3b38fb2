#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <annulus/training/checkpoint/reader.hpp>

namespace annulus::checkpoint {

/// Which checkpoints of a run stay.
struct Retention {
  std::int64_t keep = 2;        ///< the newest ones
  std::int64_t keep_every = 0;  ///< and those of steps that this divides; 0: no others
};

/// The folder of a run's checkpoints: step-00000100/ and so on.
class CheckpointFolder {
 public:
  CheckpointFolder(std::filesystem::path folder, const Retention& retention);

  const std::filesystem::path& path() const { return folder_; }
  /// "step-00000120".
  static std::string name_of(std::int64_t step);
  /// What follows that in the name of a state that is saved early (training::Saver): all ranks know it.
  static constexpr std::string_view early_suffix = ".tmp-early";

  /// Where the checkpoint of that step lies, or will.
  std::filesystem::path path_of(std::int64_t step) const { return folder_ / name_of(step); }

  /// Removes what a run that was killed while it saved has left: names of exactly the form that
  /// io::temporary_name makes of a checkpoint's, or with early_suffix. Call it while no other run can save
  /// here.
  void remove_leftovers() const;

  /// A new, empty folder that becomes the checkpoint of `step`. Its name cannot be guessed. Throws Error
  /// naming it.
  std::filesystem::path begin(std::int64_t step) const;
  /// `folder`, of begin, has all its parts and its manifest: it gets its name. Then removes what Retention
  /// does not keep, of the steps up to this one. Throws Error where another run has saved this step
  /// meanwhile.
  void commit(const std::filesystem::path& folder, std::int64_t step);
  /// Removes a folder of begin.
  static void discard(const std::filesystem::path& folder);

  /// Steps that have a checkpoint, ascending. A folder without its manifest is none.
  std::vector<std::int64_t> steps() const;

  /// The newest one, of those before `before` where that is given, that is whole as far as its parts are
  /// there. Others are reported as warnings in the log and passed over. Throws Error when there are some but
  /// none is good, and when there are those of an older version alone.
  std::optional<Checkpoint> newest_good(std::optional<std::int64_t> before = {});
  /// The checkpoint of this step turned out to be damaged when it was read: it may be replaced.
  void pass_over(std::int64_t step) { passed_over_.insert(step); }

 private:
  void reject_older() const;
  void remove_old(std::int64_t newest) const;

  std::filesystem::path folder_;
  Retention retention_;
  std::set<std::int64_t> passed_over_;
};

}  // namespace annulus::checkpoint
