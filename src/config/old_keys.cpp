#include <annulus/config/old_keys.hpp>

#include <array>

namespace annulus::config {
namespace {

constexpr std::array all_output_keys = {
    OutputKey{"metrics", "", "waiting_seconds", "exposed_communication_seconds"},

    OutputKey{"attention", "forward", "waiting_seconds", "exposed_communication_seconds"},
    OutputKey{"attention", "backward", "waiting_seconds", "exposed_communication_seconds"},
    OutputKey{"attention", "", "waiting_share", "exposed_communication_share"},
    OutputKey{"attention", "predicted", "exposed_seconds", "exposed_communication_seconds"},
    OutputKey{"attention", "", "beyond_compute_share", "communication_overhead_share"},
    OutputKey{"attention", "", "hidden_share", "overlapped_share"},
    OutputKey{"attention", "sent_bytes", "inside_nodes", "intra_node"},
    OutputKey{"attention", "sent_bytes", "between_nodes", "inter_node"},
    OutputKey{"attention", "", "sent_bytes_between_nodes", "sent_bytes_inter_node"},
    OutputKey{"attention", "", "predicted_on", "prediction_source"},
    OutputKey{"attention", "", "refused", "unsupported"},
    OutputKey{"attention", "", "efficiency", "local_kernel_share"},
    OutputKey{"attention", "config", "nccl_blocks", "max_ctas"},
    OutputKey{"attention", "spin", "free_multiprocessors", "free_sms"},

    OutputKey{"attention.csv", "", "sent_bytes_inside_nodes", "sent_bytes_intra_node"},
    OutputKey{"attention.csv", "", "sent_bytes_between_nodes", "sent_bytes_inter_node"},
    OutputKey{"attention.csv", "", "exposed_seconds", "exposed_communication_seconds"},
    OutputKey{"attention.csv", "", "exposed_seconds_max", "exposed_communication_seconds_max"},
    OutputKey{"attention.csv", "", "exposed_share", "exposed_communication_share"},
    OutputKey{"attention.csv", "", "hidden_share", "overlapped_share"},
    OutputKey{"attention.csv", "", "efficiency", "local_kernel_share"},
    OutputKey{"attention.csv", "", "beyond_compute_share", "communication_overhead_share"},
    OutputKey{"attention.csv", "", "predicted_exposed_seconds", "predicted_exposed_communication_seconds"},

    OutputKey{"emulate", "config", "stand_in", "synthetic_kernels"},
    OutputKey{"emulate", "", "exposed_seconds", "exposed_communication_seconds"},
    OutputKey{"emulate", "", "factor_of_first", "speedup_over_first"},
    OutputKey{"emulate", "", "refused", "unsupported"},

    OutputKey{"kernels", "", "most_error", "tolerance"},
    OutputKey{"matmul", "", "products", "gemms"},
    OutputKey{"lm-head", "", "products", "gemms"},

    OutputKey{"links", "fits", "inside", "intra_node"},
    OutputKey{"links", "fits", "between", "inter_node"},
    OutputKey{"links", "", "rails", "nics_per_node"},

    OutputKey{"topology", "", "findings", "diagnostics"},
    OutputKey{"topology", "", "reach_of_gpus", "path_types_of_gpus"},
    OutputKey{"topology", "", "reach", "path_type"},
    OutputKey{"topology", "", "rail", "nic_index"},
    OutputKey{"topology", "", "card", "nic"},
    OutputKey{"topology", "ranks", "cards", "nics"},
    OutputKey{"topology", "rank", "cards", "nics"},
    OutputKey{"topology", "nodes", "rails", "fabric_nics"},
    OutputKey{"topology", "guess", "inside", "intra_node"},
    OutputKey{"topology", "guess", "between", "inter_node"},
    OutputKey{"topology", "guess", "rails", "nics_per_node"},

    OutputKey{"", "cluster", "inside", "intra_node"},
    OutputKey{"", "cluster", "between", "inter_node"},
    OutputKey{"", "cluster", "rails", "nics_per_node"},

    OutputKey{"plan", "", "intra", "intra_node"},
    OutputKey{"plan", "", "inter", "inter_node"},
    OutputKey{"plan", "", "intra_bytes", "intra_node_bytes"},
    OutputKey{"plan", "", "inter_bytes", "inter_node_bytes"},
    OutputKey{"plan", "", "exposed", "exposed_communication"},
    OutputKey{"plan", "", "refuses", "unsupported"},
};

std::optional<std::string_view> other_name(std::string_view file, std::string_view parent,
                                           std::string_view name, std::string_view OutputKey::*from,
                                           std::string_view OutputKey::*to) {
  const auto fits = [](std::string_view wanted, std::string_view found) {
    return wanted.empty() || wanted == found;
  };
  for (const OutputKey& row : all_output_keys)
    if (row.*from == name && fits(row.file, file) && fits(row.parent, parent)) return row.*to;
  return std::nullopt;
}

}  // namespace

std::span<const OutputKey> output_keys() {
  return all_output_keys;
}

std::optional<std::string_view> old_key(std::string_view file, std::string_view parent,
                                        std::string_view now) {
  return other_name(file, parent, now, &OutputKey::now, &OutputKey::before);
}

std::optional<std::string_view> new_key(std::string_view file, std::string_view parent,
                                        std::string_view before) {
  return other_name(file, parent, before, &OutputKey::before, &OutputKey::now);
}

}  // namespace annulus::config
