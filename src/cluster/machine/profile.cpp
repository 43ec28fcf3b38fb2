#include "cluster/machine/profile.hpp"

#include <array>
#include <cctype>

#include "base/config/parse.hpp"
#include "base/config/section.hpp"

namespace annulus::machine {
namespace {

using config::Section;

constexpr const char* keys_advice = "the keys of a site profile are those of docs/formats/site-profile.md";
constexpr int most = 1 << 16;

void read_node(const Section& section, Profile& profile) {
  section.allow({"sockets", "numa", "cores", "gpus", "gpu", "gpus_assumed"});
  section.read("sockets", profile.sockets, 1, most);
  section.read("numa", profile.numa, 1, most);
  section.read("cores", profile.cores, 1, most);
  section.read("gpus", profile.gpus, 0, most);
  if (const toml::node* node = section.find("gpu")) {
    profile.gpu = node->is_array() ? section.texts(*node, "gpu") : std::vector{section.text(*node, "gpu")};
    if (profile.gpus <= 0) section.reject(*node, "node.gpu names GPUs, but node.gpus does not say how many");
  }
  section.read("gpus_assumed", profile.gpus_assumed);
  if (profile.gpus_assumed && profile.gpus <= 0)
    section.reject(section.need("gpus_assumed"), "node.gpus_assumed needs node.gpus, the GPUs to assume");
}

void read_network(const Section& section, Profile& profile) {
  section.allow({"nics", "devices", "interfaces", "kind", "rate", "fabric"});
  section.read("nics", profile.nics, 1, most);
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
    profile.kind = section.choice(*node, "kind", {NicKind::infiniband, NicKind::roce, NicKind::ethernet});
  section.read("rate", profile.rate, 0, false);
  if (const toml::node* node = section.find("fabric"))
    profile.fabric = section.choice(*node, "fabric", {Fabric::rails, Fabric::flat});
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

void read_environment(const Section& section, Profile& profile) {
  for (const auto& [key, node] : section.table()) {
    if (!is_variable(key.str()))
      section.reject(node, "environment.{} cannot be the name of a variable", key.str());
    profile.environment.emplace_back(key.str(), section.text(node, key.str()));
  }
}

Profile read(const toml::table& table, std::string_view origin) {
  const Section file(table, "", origin);
  file.allow({"description", "node", "network", "ranks", "environment"});
  Profile profile;
  file.read("description", profile.description);
  file.in("node", [&](const Section& section) { read_node(section, profile); });
  file.in("network", [&](const Section& section) { read_network(section, profile); });
  file.in("ranks", [&](const Section& section) {
    section.allow({"per_node"});
    section.read("per_node", profile.ranks_per_node, 1, most);
    if (profile.gpus > 0 && profile.ranks_per_node > profile.gpus)
      section.reject(section.need("per_node"),
                     "ranks.per_node is {}, but node.gpus is {}: a rank needs a GPU of its own",
                     profile.ranks_per_node, profile.gpus);
  });
  file.in("environment", [&](const Section& section) { read_environment(section, profile); });
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
          "{}: there is no such site profile; "
          "those that come with Annulus lie in slurm/profiles (installed: share/annulus/slurm/profiles)",
          path.string());
  return read(config::parse_file(path, keys_advice), path.string());
}

}  // namespace annulus::machine
