#include <algorithm>
#include <cmath>
#include <system_error>

#include <annulus/base/error.hpp>

#include "base/with_dtype.hpp"
#include "training/io/atomic.hpp"
#include "training/io/json.hpp"
#include "training/io/safetensors/writer.hpp"
#include "training/weights/hf_weights.hpp"

namespace annulus::weights {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t piece = std::int64_t{1} << 20;  // elements that are converted at a time

using Tensors = std::vector<HfTensor>;

/// The tensors of each file.
std::vector<Tensors> divide(const Tensors& all, const HfExport& what) {
  std::vector<Tensors> files;
  std::uint64_t bytes = 0;
  for (const HfTensor& tensor : all) {
    const std::uint64_t size = static_cast<std::uint64_t>(tensor.size()) * size_of(what.type);
    if (files.empty() || (bytes > 0 && bytes + size > what.shard_bytes)) {
      files.emplace_back();
      bytes = 0;
    }
    files.back().push_back(tensor);
    bytes += size;
  }
  return files;
}

template <class T>
void write_as(io::SafetensorsWriter& file, const HfTensor& tensor, const HfExport& what) {
  std::vector<float> values;
  std::vector<T> rounded;
  for (std::int64_t first = 0; first < tensor.size(); first += piece) {
    values.resize(static_cast<std::size_t>(std::min(piece, tensor.size() - first)));
    what.read(tensor.begin + first, values);
    rounded.clear();
    for (const float value : values) rounded.push_back(static_cast<T>(value));
    require(std::all_of(rounded.begin(), rounded.end(),
                        [](T value) { return std::isfinite(static_cast<float>(value)); }),
            "tensor {} holds numbers that {} cannot: choose another type", tensor.name, name_of(what.type));
    file.write(tensor.name, static_cast<std::uint64_t>(first), std::span<const T>(rounded));
  }
}

void write_file(const fs::path& path, const Tensors& tensors, const HfExport& what) {
  std::vector<io::SafetensorsSpec> specs;
  for (const HfTensor& tensor : tensors) specs.push_back({tensor.name, what.type, tensor.extents()});
  // transformers refuses files that do not say which framework they are from.
  io::write_safetensors(path, specs, {{"format", "pt"}}, [&](io::SafetensorsWriter& file) {
    for (const HfTensor& tensor : tensors)
      with_dtype<float, bfloat16, float16>(what.type, [&]<class T>(T) { write_as<T>(file, tensor, what); });
  });
}

void require_free(const fs::path& folder) {
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    require(name != "config.json" && !name.ends_with(".safetensors") &&
                !name.ends_with(".safetensors.index.json"),
            "'{}' holds weights already ({}): choose another folder", folder.string(), name);
  }
  require(!error, "cannot list the folder '{}' ({}): check its permissions", folder.string(),
          error.message());
}

}  // namespace

void write_hf_folder(const fs::path& folder, const HfExport& what) {
  require(what.type == DType::f32 || what.type == DType::bf16 || what.type == DType::f16,
          "weights are written in f32, bf16 or f16, not in {}", name_of(what.type));
  const model::ParameterMap map(what.config.shape);
  std::error_code error;
  fs::create_directories(folder, error);
  require(!error, "the folder '{}' cannot be made ({}): check its permissions", folder.string(),
          error.message());
  require_free(folder);
  const std::vector<Tensors> files = divide(hf_tensors(map, family_of(what.config)), what);
  nlohmann::json index;
  index["metadata"]["total_size"] = static_cast<std::uint64_t>(map.size()) * size_of(what.type);
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name = files.size() == 1
                                 ? std::string("model.safetensors")
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, files.size());
    write_file(folder / name, files[i], what);
    for (const HfTensor& tensor : files[i]) index["weight_map"][tensor.name] = name;
  }
  if (files.size() > 1)
    io::write_text_atomically(folder / "model.safetensors.index.json", index.dump(2) + "\n");
  for (const auto& [name, contents] : what.files)
    if (name != token_ids_file && is_model_file(name)) io::write_text_atomically(folder / name, contents);
  io::write_text_atomically(folder / "config.json", to_hf_config(what.config, what.type));
}

}  // namespace annulus::weights
