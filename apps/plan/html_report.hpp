#pragma once

#include <filesystem>

#include <annulus/plan/plan.hpp>
#include <annulus/simulate/simulate.hpp>

namespace annulus::planner {

/// Writes a page that needs nothing else: the numbers, a timeline of ranks and links (svg_timeline.hpp), a
/// table by rank; atomically. Throws Error when the timeline has more spans than a browser shows.
void write_html(const std::filesystem::path& path, const plan::Plan& plan,
                const simulate::Simulation& simulation);

}  // namespace annulus::planner
