#include "cluster/machine/profile.hpp"

#include <fmt/ranges.h>

#include <array>
#include <cctype>

#include "base/config/parse.hpp"
#include "base/config/section.hpp"

namespace annulus::machine {
namespace {

using config::Section;

constexpr const char* keys_advice = "the keys of a site profile are those of docs/formats/site-profile.md";
constexpr int most = 1 << 16;

template <class Enum, std::size_t n>
Enum choice(const Section& section, const toml::node& node, std::string_view key,
            const std::array<Enum, n>& known) {
  const std::string text = section.text(node, key);
  std::vector<std::string_view> names;
  for (const Enum value : known) {
    if (name_of(value) == text) return value;
    names.push_back(name_of(value));
  }
  section.reject(node, "{} is '{}'; known are {}", key, text, fmt::join(names, ", "));
}

void read_count(const Section& section, std::string_view key, int least, int& count) {
  if (const toml::node* node = section.find(key))
    count = static_cast<int>(section.integer(*node, key, least, most));
}

void read_node(const Section& section, Profile& profile) {
  section.allow({"sockets", "numa", "cores", "gpus", "gpu", "gpus_assumed"});
  read_count(section, "sockets", 1, profile.sockets);
  read_count(section, "numa", 1, profile.numa);
  read_count(section, "cores", 1, profile.cores);
  read_count(section, "gpus", 0, profile.gpus);
  if (const toml::node* node = section.find("gpu")) {
    profile.gpu = node->is_array() ? section.texts(*node, "gpu") : std::vector{section.text(*node, "gpu")};
    if (profile.gpus <= 0) section.reject(*node, "node.gpu names GPUs, but node.gpus does not say how many");
  }
  if (const toml::node* node = section.find("gpus_assumed")) {
    profile.gpus_assumed = section.flag(*node, "gpus_assumed");
    if (profile.gpus_assumed && profile.gpus <= 0)
      section.reject(*node, "node.gpus_assumed needs node.gpus, the GPUs to assume");
  }
}

void read_network(const Section& section, Profile& profile) {
  section.allow({"nics", "devices", "interfaces", "kind", "rate", "fabric"});
  read_count(section, "nics", 1, profile.nics);
  if (const toml::node* node = section.find("devices")) {
    profile.devices = section.texts(*node, "devices");
    if (profile.nics == 0) profile.nics = static_cast<int>(profile.devices.size());
    if (profile.nics != std::ssize(profile.devices))
      section.reject(*node, "network.devices lists {} NICs, but network.nics is {}: make them agree",
                     profile.devices.size(), profile.nics);
  }
  if (const toml::node* node = section.find("interfaces"))
    profile.interfaces = section.texts(*node, "interfaces");
  if (const toml::node* node = section.find("kind"))
    profile.kind =
        choice(section, *node, "kind", std::array{NicKind::infiniband, NicKind::roce, NicKind::ethernet});
  if (const toml::node* node = section.find("rate")) profile.rate = section.number(*node, "rate", 0, false);
  if (const toml::node* node = section.find("fabric"))
    profile.fabric = choice(section, *node, "fabric", std::array{Fabric::rails, Fabric::flat});
  if (profile.kind == NicKind::ethernet && !profile.devices.empty())
    section.reject(*section.find("devices"),
                   "network.devices names RDMA devices, which kind = \"ethernet\" has not: "
                   "name its NICs in network.interfaces");
}

bool is_variable(std::string_view name) {
  if (name.empty() || std::isdigit(static_cast<unsigned char>(name.front())) != 0) return false;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '_') return false;
  }
  return true;
}

void read_environment(const Section& section, const toml::table& table, Profile& profile) {
  for (const auto& [key, node] : table) {
    if (!is_variable(key.str()))
      section.reject(node, "environment.{} cannot be the name of a variable", key.str());
    profile.environment.emplace_back(key.str(), section.text(node, key.str()));
  }
}

Profile read(const toml::table& table, std::string_view origin) {
  const Section file(table, "", origin);
  file.allow({"description", "node", "network", "ranks", "environment"});
  Profile profile;
  if (const toml::node* node = file.find("description"))
    profile.description = file.text(*node, "description");
  if (const toml::node* node = file.find("node"))
    read_node({file.table(*node, "node"), "node", origin}, profile);
  if (const toml::node* node = file.find("network"))
    read_network({file.table(*node, "network"), "network", origin}, profile);
  if (const toml::node* node = file.find("ranks")) {
    const Section section(file.table(*node, "ranks"), "ranks", origin);
    section.allow({"per_node"});
    read_count(section, "per_node", 1, profile.ranks_per_node);
    if (profile.gpus > 0 && profile.ranks_per_node > profile.gpus)
      section.reject(section.need("per_node"),
                     "ranks.per_node is {}, but node.gpus is {}: a rank needs a GPU of its own",
                     profile.ranks_per_node, profile.gpus);
  }
  if (const toml::node* node = file.find("environment"))
    read_environment({file.table(*node, "environment"), "environment", origin}, *node->as_table(), profile);
  return profile;
}

}  // namespace

std::string_view name_of(NicKind kind) {
  constexpr std::array<std::string_view, 3> names = {"infiniband", "roce", "ethernet"};
  return names[static_cast<std::size_t>(kind)];
}

std::string_view name_of(Fabric fabric) {
  constexpr std::array<std::string_view, 3> names = {"unknown", "rails", "flat"};
  return names[static_cast<std::size_t>(fabric)];
}

Profile parse_profile(std::string_view text, std::string_view origin) {
  return read(config::parse(text, origin, keys_advice), origin);
}

Profile read_profile(const std::filesystem::path& path) {
  std::error_code error;
  require(std::filesystem::exists(path, error) || error,
          "{}: there is no such site profile; those that come with Annulus lie in slurm/profiles (installed: "
          "share/annulus/slurm/profiles)",
          path.string());
  return read(config::parse_file(path, keys_advice), path.string());
}

}  // namespace annulus::machine
