#include <annulus/train/checkpoint.hpp>

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <system_error>

#include <annulus/base/error.hpp>
#include <annulus/base/version.hpp>
#include <annulus/io/atomic.hpp>
#include <annulus/io/crc32.hpp>
#include <annulus/io/hdf5_writer.hpp>

#include "train/checkpoint_seal.hpp"

namespace annulus::train {

namespace fs = std::filesystem;

namespace {

constexpr const char* checksum_attribute = "crc32";
constexpr std::array part_names{"parameters", "first_moment", "second_moment"};

// The three groups of a checkpoint and the flat buffer that each one holds.
struct Part {
  const char* group;
  const FlatBuffer& buffer;
};
std::vector<Part> parts_of(const Buffers& buffers) {
  return {{part_names[0], buffers.parameters},
          {part_names[1], buffers.first_moment},
          {part_names[2], buffers.second_moment}};
}

io::Extents extents_of(const model::Parameter& parameter) {
  const auto rows = static_cast<std::uint64_t>(parameter.rows),
             columns = static_cast<std::uint64_t>(parameter.columns);
  return rows == 1 ? io::Extents{columns} : io::Extents{rows, columns};
}

void require_format(const io::File& file) {
  require(file.has_attribute("format") && file.string_attribute("format") == checkpoint_format,
          "{} is no checkpoint of Annulus (its attribute 'format' is not '{}'): give the right file",
          file.file(), checkpoint_format);
  const std::int64_t version = file.integer_attribute("version");
  require(version >= 1 && version <= checkpoint_version,
          "{} has checkpoint version {}, this program reads versions 1 to {}: use the program that wrote it",
          file.file(), version, checkpoint_version);
}

Progress read_header(const io::File& file) {
  require_format(file);
  Progress progress;
  progress.step = file.integer_attribute("step");
  progress.stream = {file.integer_attribute("epoch"), file.integer_attribute("sequences_read")};
  // Version 1 has the old name alone.
  progress.global_batch_size = file.integer_attribute(
      file.has_attribute("global_batch_size") ? "global_batch_size" : "update_sequences");
  progress.data_fingerprint = static_cast<std::uint32_t>(file.integer_attribute("data_fingerprint"));
  progress.config = file.string_attribute("config");
  return progress;
}

void require_checksum(const io::Dataset& dataset, std::span<const float> values) {
  const auto expected = dataset.integer_attribute(checksum_attribute);
  require(io::crc32_of(values) == expected,
          "{}: dataset {} is damaged (its CRC-32 differs from the recorded one): {}", dataset.file(),
          dataset.name(), bad_checkpoint_advice);
}

void require_checksums(const io::File& file) {
  std::vector<float> values;
  for (const char* part : part_names) {
    const io::Group group = file.group(part);
    for (const std::string& name : group.names()) {
      const io::Dataset dataset = group.dataset(name);
      values.resize(dataset.elements());
      dataset.read(std::span<float>(values));
      require_checksum(dataset, values);
    }
  }
}

}  // namespace

void save_checkpoint(const fs::path& path, const model::ParameterMap& map, const Progress& progress,
                     const Buffers& buffers) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  require(!error, "the checkpoint folder {} cannot be made ({}): check its permissions or set run.folder",
          path.parent_path().string(), error.message());
  io::write_atomically(path, [&](const fs::path& temporary) {
    io::FileWriter file = io::FileWriter::create(temporary);
    file.set_attribute("format", checkpoint_format);
    file.set_attribute("version", checkpoint_version);
    file.set_attribute("creator", fmt::format("annulus {} {}", version(), git_hash()));
    file.set_attribute("step", progress.step);
    file.set_attribute("epoch", progress.stream.epoch);
    file.set_attribute("sequences_read", progress.stream.index);
    for (const char* name : {"global_batch_size", "update_sequences"})  // and as version 1 calls it
      file.set_attribute(name, progress.global_batch_size);
    file.set_attribute("data_fingerprint", progress.data_fingerprint);
    file.set_attribute("config", progress.config);
    std::vector<float> values;
    for (const Part& part : parts_of(buffers)) {
      io::GroupWriter group = file.create_group(part.group);
      for (const model::Parameter& parameter : map.all()) {
        values.resize(static_cast<std::size_t>(parameter.size()));
        part.buffer.read(parameter.offset, values);
        io::DatasetWriter dataset = group.create_dataset(parameter.name, DType::f32, extents_of(parameter));
        dataset.write(std::span<const float>(values));
        dataset.set_attribute(checksum_attribute, io::crc32_of(std::span<const float>(values)));
      }
    }
    file.close();
    seal_checkpoint(temporary);  // of what is in the file, which the next line compares with what was to be
    require_checksums(io::File::open(temporary));
  });
}

Checkpoint::Checkpoint(fs::path file) : file_(std::move(file)) {
  require_sealed(file_);
  progress_ = read_header(io::File::open(file_));
}

void Checkpoint::load(const model::ParameterMap& map, const Buffers& buffers) const {
  const io::File file = io::File::open(file_);
  std::vector<float> values;
  for (const Part& part : parts_of(buffers)) {
    const io::Group group = file.group(part.group);
    require(group.names().size() == map.all().size(),
            "{}: {} holds {} tensors, the model has {}: the checkpoint is of another model", file_.string(),
            part.group, group.names().size(), map.all().size());
    for (const model::Parameter& parameter : map.all()) {
      const io::Dataset dataset = group.dataset(parameter.name);
      require(dataset.extents() == extents_of(parameter),
              "{}: {} has shape ({}), the model's is ({}): the checkpoint is of another model",
              file_.string(), dataset.name(), fmt::join(dataset.extents(), ", "),
              fmt::join(extents_of(parameter), ", "));
      values.resize(static_cast<std::size_t>(parameter.size()));
      dataset.read(std::span<float>(values));
      require_checksum(dataset, values);
      part.buffer.write(parameter.offset, values);
    }
  }
}

CheckpointFolder::CheckpointFolder(fs::path folder, std::int64_t keep)
    : folder_(std::move(folder)), keep_(keep) {}

fs::path CheckpointFolder::file_of(std::int64_t step) const {
  return folder_ / fmt::format("step-{:08}.h5", step);
}

void CheckpointFolder::remove_leftovers() const {
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("step-") && name.find(".h5.tmp-") != std::string::npos)
      fs::remove(entry.path(), error);
  }
}

void CheckpointFolder::save(const model::ParameterMap& map, const Progress& progress,
                            const Buffers& buffers) const {
  save_checkpoint(file_of(progress.step), map, progress, buffers);
  auto saved = steps();
  // Later ones were passed over when the run started (damaged): they neither count nor go.
  std::erase_if(saved, [&](std::int64_t step) { return step > progress.step; });
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep_) < saved.size(); ++i) {
    std::error_code error;
    fs::remove(file_of(saved[i]), error);
    if (error)
      spdlog::warn("the old checkpoint {} could not be removed: {}", file_of(saved[i]).string(),
                   error.message());
  }
}

std::vector<std::int64_t> CheckpointFolder::steps() const {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    std::int64_t step = 0;
    if (!name.starts_with("step-") || !name.ends_with(".h5")) continue;
    const char *begin = name.data() + 5, *end = name.data() + name.size() - 3;
    if (std::from_chars(begin, end, step).ptr == end) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

std::optional<Checkpoint> CheckpointFolder::newest_good() const {
  const auto saved = steps();
  for (auto step = saved.rbegin(); step != saved.rend(); ++step) {
    try {
      return Checkpoint(file_of(*step));
    } catch (const Error& error) {
      spdlog::warn("passing over a damaged checkpoint: {}", error.what());
    }
  }
  require(saved.empty(),
          "none of the {} checkpoints in {} can be read: start anew in another run.folder, or restore one of "
          "them",
          saved.size(), folder_.string());
  return std::nullopt;
}

}  // namespace annulus::train
