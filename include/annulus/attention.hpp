#pragma once

/// The component attention: exact attention over a sequence on one rank or many.
#include <annulus/attention/local.hpp>
#include <annulus/base/error.hpp>
#include <annulus/base/version.hpp>
#include <annulus/comm/communicator.hpp>
#include <annulus/comm/loopback.hpp>
#include <annulus/comm/mpi.hpp>
#include <annulus/comm/null.hpp>
#include <annulus/comm/transport.hpp>
#include <annulus/core/device.hpp>
#include <annulus/core/tensor.hpp>
#include <annulus/core/threads.hpp>
#include <annulus/distributed/attention.hpp>
#include <annulus/plan/plan.hpp>
#include <annulus/plan/schedules.hpp>
#include <annulus/plan/validate.hpp>
#include <annulus/sequence/layout.hpp>
#include <annulus/sequence/mask.hpp>
#include <annulus/sparsity/attention.hpp>
#include <annulus/topology/topology.hpp>
