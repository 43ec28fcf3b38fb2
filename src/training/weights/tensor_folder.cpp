#include "training/weights/tensor_folder.hpp"

#include <algorithm>
#include <set>

#include <annulus/base/error.hpp>

#include "base/file.hpp"
#include "training/io/json.hpp"
#include "training/weights/weight_map.hpp"

namespace annulus::weights {

namespace fs = std::filesystem;

namespace {

constexpr const char* single_file = "model.safetensors";
constexpr const char* index_file = "model.safetensors.index.json";

/// A link to nothing is there as well: opening it tells what is missing.
bool is_there(const fs::path& path) {
  std::error_code error;
  return fs::exists(fs::symlink_status(path, error));
}

}  // namespace

WeightMap parse_weight_map(std::string_view text, const std::string& origin) {
  const nlohmann::json json = io::parse_json_object(text, origin);
  const auto found = json.find("weight_map");
  require(found != json.end() && found->is_object() && !found->empty(),
          "'{}' has no weight_map, an object of files by tensor: copy or write it again", origin);
  WeightMap files;
  for (const auto& [tensor, file] : found->items()) {
    require(file.is_string(),
            "'{}': tensor {} lies in {}, which is no name of a file: copy or write it again", origin,
            io::shown(tensor), io::shown(file));
    const std::string name = file.get<std::string>();
    require(is_plain_name(name) && name.find('\\') == name.npos,
            "'{}': tensor {} lies in {}, outside of the folder: give names of files in the folder alone",
            origin, io::shown(tensor), io::shown(file));
    files[tensor] = name;
  }
  return files;
}

TensorFolder::TensorFolder(const fs::path& folder) : folder_(folder) {
  const std::string index = (folder / index_file).string();
  if (is_there(folder / single_file)) {
    files_.emplace_back(folder / single_file);
    return;
  }
  require(is_there(index),
          "'{}' holds neither {} nor {}: give a folder of weights; other formats (pytorch_model.bin) are "
          "converted by transformers' save_pretrained",
          folder.string(), single_file, index_file);
  const WeightMap listed = parse_weight_map(read_text(index, kinds::weights_index), index);
  std::set<std::string> names;
  for (const auto& [tensor, file] : listed) names.insert(file);
  WeightMap held;
  for (const std::string& name : names) {
    files_.emplace_back(folder / name);
    for (const io::SafetensorsTensor& tensor : files_.back().tensors()) {
      const auto [before, added] = held.emplace(tensor.name, name);
      require(added, "'{}': tensor {} lies in {} and in {}: remove one", index, io::shown(tensor.name),
              io::shown(before->second), io::shown(name));
    }
  }
  for (const auto& [tensor, file] : listed) {
    const auto found = held.find(tensor);
    require(found != held.end() && found->second == file,
            "'{}': tensor {} is not in {}, which the index names: copy or write the folder again", index,
            io::shown(tensor), io::shown(file));
  }
  for (const auto& [tensor, file] : held)
    require(listed.contains(tensor), "'{}' does not list tensor {} of {}: copy or write the folder again",
            index, io::shown(tensor), io::shown(file));
}

TensorFolder::Location TensorFolder::find(std::string_view name) const {
  for (const io::SafetensorsFile& file : files_)
    if (const io::SafetensorsTensor* tensor = file.find(name)) return {&file, tensor};
  return {};
}

std::vector<TensorFolder::Location> TensorFolder::all() const {
  std::vector<Location> places;
  for (const io::SafetensorsFile& file : files_)
    for (const io::SafetensorsTensor& tensor : file.tensors()) places.push_back({&file, &tensor});
  std::sort(places.begin(), places.end(),
            [](const Location& a, const Location& b) { return a.tensor->name < b.tensor->name; });
  return places;
}

}  // namespace annulus::weights
