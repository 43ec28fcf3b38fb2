#pragma once

/// The component prediction: what attention takes on a cluster that need not be there, and what links and
/// kernels of this one reach.
#include <annulus/emulate/emulate.hpp>
#include <annulus/machine/machine.hpp>
#include <annulus/machine/placement.hpp>
#include <annulus/measure/cluster.hpp>
#include <annulus/measure/kernels.hpp>
#include <annulus/measure/links.hpp>
#include <annulus/simulate/choose.hpp>
#include <annulus/simulate/cluster.hpp>
#include <annulus/simulate/simulate.hpp>
