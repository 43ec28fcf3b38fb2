#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include <annulus/simulate/simulate.hpp>

namespace annulus::app {

/// Links and kernels as the reports of all programs write them; `dtype` of a kernel is null when its rate
/// holds for every type.
nlohmann::json to_json(const simulate::Cluster& cluster);

/// "intra", "inter": the values of the field "link", beside which "link_class" has the names of today.
std::string_view old_name_of(simulate::LinkClass link);

}  // namespace annulus::app
