#!/usr/bin/env python3
"""Writes hwloc XML files of types of node: `python3 make_nodes.py FOLDER`. The tests read them.

They are no captures. They are modelled on the public block diagrams of each type of node: sockets, NUMA nodes, cores, the PCIe
switches with the GPUs and NICs below them. Caches and other devices are left out.
"""
import pathlib
import sys
import xml.sax.saxutils as sax

FOLDER = pathlib.Path(sys.argv[1])


def bits(numbers):
    """A set as hwloc writes it: words of 32 bits, the highest first."""
    value = sum(1 << n for n in numbers)
    words = []
    while value or not words:
        words.append(value & 0xFFFFFFFF)
        value >>= 32
    return ",".join(f"0x{w:08x}" for w in reversed(words))


class Node:
    """One node type. `trees[i]` lists the PCI trees that hang on NUMA node i, `gpu_memory[i]` is the NUMA node that its GPU's memory is."""

    def __init__(self, host, about, processor, sockets, numa_per_socket, cores_per_numa, threads, memory, trees, infos=(), gpu_memory=None):
        self.host, self.about, self.processor, self.infos = host, about, processor, infos
        self.sockets, self.numa_per_socket, self.cores_per_numa = sockets, numa_per_socket, cores_per_numa
        self.threads, self.memory, self.trees, self.gpu_memory = threads, memory, trees, gpu_memory or {}
        self.lines, self.depth, self.gp = [], 0, 0

    def open(self, type_, close=False, **attributes):
        self.gp += 1
        text = "".join(f" {k}={sax.quoteattr(str(v))}" for k, v in attributes.items())
        self.line(f'<object type="{type_}"{text} gp_index="{self.gp}"{"/" if close else ""}>')
        self.depth += 0 if close else 1

    def end(self):
        self.depth -= 1
        self.line("</object>")

    def line(self, text):
        self.lines.append("  " * self.depth + text)

    def info(self, name, value):
        self.line(f"<info name={sax.quoteattr(name)} value={sax.quoteattr(str(value))}/>")

    def sets(self, cpus, nodes):
        return dict(cpuset=bits(cpus), complete_cpuset=bits(cpus), nodeset=bits(nodes), complete_nodeset=bits(nodes))

    def cpus(self, cores):
        """Second threads are numbered after all first ones, as Linux does."""
        all_cores = self.sockets * self.numa_per_socket * self.cores_per_numa
        return [c + t * all_cores for t in range(self.threads) for c in cores]

    def nodes(self, indices):
        return [*indices, *(self.gpu_memory[index] for index in indices if index in self.gpu_memory)]

    def numa(self, index):
        cores = range(index * self.cores_per_numa, (index + 1) * self.cores_per_numa)
        sets = self.sets(self.cpus(cores), [index])
        self.open("NUMANode", True, os_index=index, **sets, local_memory=self.memory)
        if index in self.gpu_memory:
            node = self.gpu_memory[index]
            self.open("NUMANode", True, os_index=node, subtype="GPUMemory", **self.sets(self.cpus(cores), [node]), local_memory=96 << 30)
        for core in cores:
            self.open("Core", False, os_index=core, **self.sets(self.cpus([core]), self.nodes([index])))
            for cpu in self.cpus([core]):
                self.open("PU", True, os_index=cpu, **self.sets([cpu], self.nodes([index])))
            self.end()
        for tree in self.trees.get(index, []):
            self.host_bridge(tree)

    def host_bridge(self, tree):
        low, high = tree["buses"]
        self.open("Bridge", False, bridge_type="0-1", depth=0, bridge_pci=f"0000:[{low:02x}-{high:02x}]")
        self.bridge(low, 1, low + 1, high, tree["below"])
        self.end()

    def bridge(self, bus, slot, low, high, below):
        self.open("Bridge", False, bridge_type="1-1", depth=1, bridge_pci=f"0000:[{low:02x}-{high:02x}]",
                  pci_busid=f"0000:{bus:02x}:{slot:02x}.0", pci_type="0604 [1000:c030] [0000:0000] 00", pci_link_speed="31.5")
        for i, entry in enumerate(below):
            if "below" in entry:  # a switch: its upstream port, then a downstream port for each device
                self.bridge(low, i, low + 1, high, [dict(port=d, slot=n) for n, d in enumerate(entry["below"])])
            elif "port" in entry:
                device = entry["port"]
                at = int(device["bus"][:2], 16)
                self.bridge(low, entry["slot"], at, at, [device])
            else:
                self.device(entry)
        self.end()

    def device(self, d):
        bus = d["bus"] if "." in d["bus"] else d["bus"] + ":00.0"
        self.open("PCIDev", False, pci_busid=f"0000:{bus}", pci_type=d["type"], pci_link_speed="31.5")
        for name, value in d["infos"]:
            self.info(name, value)
        for name, kind, infos in d.get("os", []):
            self.open("OSDev", False, name=name, osdev_type=kind)
            for key, value in infos:
                self.info(key, value)
            self.end()
        self.end()

    def write(self):
        nodes = range(self.sockets * self.numa_per_socket)
        cpus = self.cpus(range(len(nodes) * self.cores_per_numa))
        self.line("<?xml version=\"1.0\" encoding=\"UTF-8\"?>")
        self.line("<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">")
        self.line(f"<!-- {self.about} Not a capture: written by make_nodes.py after the public block diagram. -->")
        self.line('<topology version="2.0">')
        self.depth += 1
        root = self.sets(cpus, self.nodes(nodes))
        self.open("Machine", False, os_index=0, **root, allowed_cpuset=root["cpuset"], allowed_nodeset=root["nodeset"])
        self.info("HostName", self.host)
        for name, value in self.infos:
            self.info(name, value)
        for socket in range(self.sockets):
            mine = range(socket * self.numa_per_socket, (socket + 1) * self.numa_per_socket)
            cores = range(mine[0] * self.cores_per_numa, (mine[-1] + 1) * self.cores_per_numa)
            self.open("Package", False, os_index=socket, **self.sets(self.cpus(cores), self.nodes(mine)))
            self.info("CPUModel", self.processor)
            for index in mine:
                if self.numa_per_socket > 1:
                    cpus_here = self.cpus(range(index * self.cores_per_numa, (index + 1) * self.cores_per_numa))
                    self.open("Group", False, **self.sets(cpus_here, self.nodes([index])), kind=1001, subkind=0)
                    self.numa(index)
                    self.end()
                else:
                    self.numa(index)
            self.end()
        self.end()
        self.depth -= 1
        self.line("</topology>")
        (FOLDER / f"{self.host}.xml").write_text("\n".join(self.lines) + "\n")


def gpu(bus, pci_id, pci_name, ordinal=None, name=None, links=None, version=None):
    infos = [("PCIVendor", "NVIDIA Corporation"), ("PCIDevice", pci_name)]
    if ordinal is not None:
        infos += [("AnnulusGpu", name), ("AnnulusOrdinal", ordinal), ("AnnulusNvlinks", links),
                  ("AnnulusNvlinkVersion", version), ("AnnulusNvlinkPeers", "switch")]
    return dict(bus=bus, type=f"0302 [10de:{pci_id}] [10de:1450] a1", infos=infos)


def hca(bus, pci_id, device, interface, rate=None, infiniband=True, address=None, pci_name="MT2910 Family [ConnectX-7]",
        pci_class=None):
    """An RDMA NIC and its interface. Without a rate it is as lstopo writes it."""
    hardware = "00:00:10:29:fe:80:00:00:00:00:00:00:b8:3f:d2:03:00:aa:00:01" if infiniband else "b8:3f:d2:aa:00:01"
    of_device, of_interface = [("NodeGUID", "b83f:d203:00aa:0001"), ("Port1State", "4")], [("Address", hardware)]
    if rate is not None:
        of_device += [("AnnulusPort", 1), ("AnnulusState", "up"), ("AnnulusRate", f"{rate:.0f}"),
                      ("AnnulusLinkLayer", "InfiniBand" if infiniband else "Ethernet")]
        of_interface += [("AnnulusState", "up")] + ([("AnnulusAddress", address)] if address else [])
    kind = pci_class or ("0207" if infiniband else "0200")
    return dict(bus=bus, type=f"{kind} [15b3:{pci_id}] [15b3:0041] 00",
                infos=[("PCIVendor", "Mellanox Technologies"), ("PCIDevice", pci_name)],
                os=[(interface, 2, of_interface), (device, 3, of_device)])


def ethernet(bus, interface, rate=None, address=None):
    infos = [("Address", "3c:ec:ef:00:00:01")]
    if rate is not None:
        infos += [("AnnulusState", "up"), ("AnnulusRate", f"{rate:.0f}"), ("AnnulusAddress", address)]
    return dict(bus=bus, type="0200 [8086:1563] [15d9:1563] 01",
                infos=[("PCIVendor", "Intel Corporation"), ("PCIDevice", "Ethernet Controller X550")], os=[(interface, 2, infos)])


def switch(low, high, *devices):
    return dict(buses=(low, high), below=[dict(below=list(devices))])


def direct(low, high, *devices):
    return dict(buses=(low, high), below=list(devices))


def a100_8():
    g = lambda bus, n: gpu(bus, "20b2", "GA100 [A100 SXM4 80GB]", n, "NVIDIA A100-SXM4-80GB", 12, 3)
    h = lambda bus, n: hca(bus, "101b", f"mlx5_{n}", f"ibp{n}", 200e9, pci_name="MT28908 Family [ConnectX-6]")
    storage = lambda bus, n, a: hca(bus, "101b", f"mlx5_{n}", f"enp{n}", 200e9, False, a, "MT28908 Family [ConnectX-6]")
    Node("a100-8", "8 A100 (A800 alike) with 8 HDR NICs: two GPUs and two NICs below each of four PCIe switches; "
         "four NUMA nodes a socket.", "AMD EPYC 7742 64-Core Processor", 2, 4, 16, 1, 128 << 30,
         {3: [switch(0x04, 0x1f, g("07", 0), h("0c", 0), g("0f", 1), h("12", 1))],
          1: [switch(0x40, 0x5f, g("47", 2), h("4b", 2), g("4e", 3), h("54", 3))],
          2: [direct(0x60, 0x6f, storage("61:00.0", 4, "10.10.0.1/16"))],
          7: [switch(0x80, 0x9f, g("87", 4), h("8d", 6), g("90", 5), h("94", 7))],
          5: [switch(0xb0, 0xcf, g("b7", 6), h("ba", 8), g("bd", 7), h("cc", 9))],
          6: [direct(0xe0, 0xef, storage("e1:00.0", 10, "10.11.0.1/16"))]},
         [("AnnulusSoftware.annulus", "0.1.0 (0123456)"), ("AnnulusSoftware.driver", "550.54.15"),
          ("AnnulusSoftware.NCCL", "2.21.5")]).write()


def h100_8():
    g = lambda bus, n: gpu(bus, "2330", "GH100 [H100 SXM5 80GB]", n, "NVIDIA H100 80GB HBM3", 18, 4)
    h = lambda bus, n, rail: hca(bus, "1021", f"mlx5_{n}", f"ibs{n}", 400e9, address=f"10.{20 + rail}.0.1/16")
    storage = lambda bus, n: hca(bus, "1021", f"mlx5_{n}", f"ibs{n}", 400e9, address=f"10.30.0.{n}/16")
    Node("h100-8", "8 H100 (H200 alike) with 8 NDR NICs of the compute fabric, each beside a GPU below a PCIe switch of "
         "their own, and 2 NICs as fast for storage.", "Intel(R) Xeon(R) Platinum 8480C", 2, 1, 56, 2, 1024 << 30,
         {0: [switch(0x15, 0x1f, h("18", 0, 0), g("1b", 0)), direct(0x28, 0x2f, storage("29:00.0", 1)),
              direct(0x30, 0x37, ethernet("31:00.0", "eno3", 10e9, "10.1.0.17/22")),
              switch(0x3d, 0x47, h("40", 3, 1), g("43", 1)), switch(0x4c, 0x56, h("4f", 4, 2), g("52", 2)),
              switch(0x5b, 0x65, h("5e", 5, 3), g("61", 3))],
          1: [switch(0x97, 0xa1, h("9a", 6, 4), g("9d", 4)), direct(0xa8, 0xaf, storage("aa:00.0", 7)),
              switch(0xbd, 0xc7, h("c0", 9, 5), g("c3", 5)), switch(0xcb, 0xd5, h("ce", 10, 6), g("d1", 6)),
              switch(0xd9, 0xe3, h("dc", 11, 7), g("df", 7))]},
         [("AnnulusSoftware.annulus", "0.1.0 (0123456)"), ("AnnulusSoftware.driver", "550.54.15"),
          ("AnnulusSoftware.NCCL", "2.21.5"), ("AnnulusClock", "1760000000.0")]).write()


def gpu_4():
    g = lambda bus: gpu(bus, "20b0", "GA100 [A100 SXM4 40GB]")
    h = lambda bus, n, of=None: hca(bus, "101b", f"mlx5_{n}", f"ib{n}", pci_name="MT28908 Family [ConnectX-6]", pci_class=of)
    Node("gpu-4", "4 A100 with 4 HDR NICs, a GPU and a NIC below each PCIe switch; with what lstopo tells alone, without "
         "the attributes that Annulus adds.", "AMD EPYC 7402 24-Core Processor", 2, 4, 6, 1, 64 << 30,
         {3: [switch(0x00, 0x1f, g("03"), h("06", 0))], 1: [switch(0x40, 0x5f, g("44"), h("48", 1, "0c06"))],
          7: [switch(0x80, 0x9f, g("84"), h("88", 2))], 5: [switch(0xc0, 0xdf, g("c4"), h("c8", 3))]}).write()


def gh200_4():
    g = lambda bus, n: gpu(bus, "2342", "GH100 [GH200 120GB / 480GB]", n, "NVIDIA GH200 120GB", 18, 4)
    h = lambda bus, n: hca(bus, "1021", f"mlx5_{n}", f"ib{n}", 200e9, address=f"10.{20 + n}.0.1/16")
    Node("gh200-4", "4 GH200 with 4 NDR200 NICs: a Grace, a Hopper and a NIC in each socket; the GPUs' memory shows as NUMA nodes.",
         "Neoverse-V2", 4, 1, 72, 1, 120 << 30,
         {i: [direct(16 * i, 16 * i + 7, g(f"{16 * i + 1:02x}", i)), direct(16 * i + 8, 16 * i + 15, h(f"{16 * i + 9:02x}", i))]
          for i in range(4)},
         [("AnnulusSoftware.annulus", "0.1.0 (0123456)")], {i: 4 + 8 * i for i in range(4)}).write()


def cpu():
    Node("cpu", "A CPU node with one HDR100 NIC on its first socket.", "AMD EPYC 7763 64-Core Processor", 2, 1, 64, 1, 256 << 30,
         {0: [direct(0x00, 0x1f, hca("02:00.0", "101b", "mlx5_0", "ib0", 100e9, address="10.2.0.9/20",
                                    pci_name="MT28908 Family [ConnectX-6]"), ethernet("03:00.0", "eno1", 25e9, "10.1.0.9/20"))]},
         [("AnnulusSoftware.annulus", "0.1.0 (0123456)")]).write()


for node in (a100_8, h100_8, gpu_4, gh200_4, cpu):
    node()
