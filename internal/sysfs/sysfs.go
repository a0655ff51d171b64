// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// DefaultRoot is the directory where sysfs is mounted.
const DefaultRoot = "/sys"

// An FS is a sysfs, or a copy of one.
type FS struct{ root string }

// New returns the sysfs at root, such as [DefaultRoot].
func New(root string) FS { return FS{root} }

// A Device is an RDMA device. What the kernel does not say is empty.
type Device struct {
	Name     string
	NodeGUID string
	Firmware string
	Board    string // of the manufacturer
	Driver   string // kernel module of the PCI function, or "rdma_rxe"
	PCI      *PCI   // nil for a device in software
	Ports    []Port // by number
}

// A PCI is the PCI function of a device.
type PCI struct {
	Address        string // such as "0000:3b:00.0"
	Vendor, Device uint16
	NUMANode       int    // -1: unknown
	FID, PCHID     string // function and channel of IBM Z machines; hexadecimal digits
}

// A Port is a port of a device.
type Port struct {
	Number    int
	NetDev    string // the network device of RoCE
	State     string // ACTIVE, DOWN, INIT, ARMED, …
	LinkLayer string // Ethernet or InfiniBand
	Rate      string // such as "100 Gb/sec (4X EDR)"
	PNETID    string // given by the hardware (IBM Z)
	GIDs      []GID  // without unused entries
}

// A GID is an entry of a port's GID table.
type GID struct {
	Index  int
	GID    string
	Type   string // "IB/RoCE v1" or "RoCE v2"
	NetDev string
}

// Devices returns the devices in the order of their names, or none if the kernel has no
// RDMA. An error means that a directory cannot be read. What a file that is missing or
// cannot be read would say is left empty.
func (f FS) Devices() ([]Device, error) {
	dir := filepath.Join(f.root, "class/infiniband")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Device
	for _, e := range entries {
		d, err := readDevice(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // gone since
		}
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

// retransmitCounters are the counters of hw_counters that count what a device sends again, by
// the names that drivers give them: rdma_rxe, mlx5 and bnxt_re.
var retransmitCounters = []string{
	"completer_retry_err",
	"local_ack_timeout_err", "packet_seq_err",
	"to_retransmits", "seq_err_naks_rcvd",
}

// Retransmits returns how often an RDMA device has sent something again, after a timeout or
// because the peer reported a gap, on all its ports since it was started. ok is false if its
// driver does not count that. How many packets each time are depends on the device.
func (f FS) Retransmits(device string) (n uint64, ok bool) {
	if device != filepath.Base(device) || device == ".." {
		return 0, false
	}
	ports := filepath.Join(f.root, "class/infiniband", device, "ports")
	entries, err := os.ReadDir(ports)
	if err != nil {
		return 0, false
	}
	for _, e := range entries {
		for _, counter := range retransmitCounters {
			if v, err := strconv.ParseUint(value(ports, e.Name(), "hw_counters", counter), 10, 64); err == nil {
				n, ok = n+v, true
			}
		}
	}
	return n, ok
}

// value returns the content of a file, or "".
func value(elem ...string) string {
	b, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func readDevice(dir string) (Device, error) {
	d := Device{
		Name: filepath.Base(dir), NodeGUID: value(dir, "node_guid"), Firmware: value(dir, "fw_ver"), Board: value(dir, "board_id"),
	}
	pci := filepath.Join(dir, "device")
	if v := value(pci, "vendor"); v != "" {
		d.PCI = readPCI(pci)
		if link, err := os.Readlink(filepath.Join(pci, "driver")); err == nil {
			d.Driver = filepath.Base(link)
		}
	}
	parent := value(dir, "parent") // the network device of soft-RoCE
	if d.PCI == nil && parent != "" {
		d.Driver = "rdma_rxe"
	}
	entries, err := os.ReadDir(filepath.Join(dir, "ports"))
	if err != nil {
		return d, err
	}
	util, _ := os.ReadFile(filepath.Join(pci, "util_string"))
	for _, e := range entries {
		n, err := strconv.Atoi(e.Name())
		if err != nil || n < 1 {
			continue
		}
		p := readPort(filepath.Join(dir, "ports", e.Name()), n)
		p.PNETID = hardwareID(util, n)
		if p.NetDev == "" && p.LinkLayer == "Ethernet" {
			if p.NetDev = parent; p.NetDev == "" {
				p.NetDev = netdevOf(pci, n)
			}
		}
		d.Ports = append(d.Ports, p)
	}
	slices.SortFunc(d.Ports, func(a, b Port) int { return a.Number - b.Number })
	return d, nil
}

func readPCI(dir string) *PCI {
	p := &PCI{NUMANode: -1, Vendor: hex16(value(dir, "vendor")), Device: hex16(value(dir, "device"))}
	if path, err := filepath.EvalSymlinks(dir); err == nil {
		p.Address = filepath.Base(path)
	}
	if n, err := strconv.Atoi(value(dir, "numa_node")); err == nil {
		p.NUMANode = n
	}
	p.FID = strings.TrimPrefix(value(dir, "function_id"), "0x")
	p.PCHID = strings.TrimPrefix(value(dir, "pchid"), "0x")
	return p
}

func hex16(s string) uint16 {
	v, err := strconv.ParseUint(strings.TrimPrefix(s, "0x"), 16, 16)
	if err != nil {
		return 0
	}
	return uint16(v)
}

func readPort(dir string, n int) Port {
	// "4: ACTIVE"
	_, state, _ := strings.Cut(value(dir, "state"), ": ")
	p := Port{Number: n, State: state, LinkLayer: value(dir, "link_layer"), Rate: value(dir, "rate")}
	entries, err := os.ReadDir(filepath.Join(dir, "gids"))
	if err != nil {
		return p
	}
	for _, e := range entries {
		i, err := strconv.Atoi(e.Name())
		gid := value(dir, "gids", e.Name())
		if err != nil || strings.Trim(gid, "0:") == "" {
			continue
		}
		p.GIDs = append(p.GIDs, GID{i, gid, value(dir, "gid_attrs/types", e.Name()), value(dir, "gid_attrs/ndevs", e.Name())})
	}
	slices.SortFunc(p.GIDs, func(a, b GID) int { return a.Index - b.Index })
	// Entry 0 is the link-local address of the port's own device; later ones
	// may be of its VLANs.
	if len(p.GIDs) > 0 && p.GIDs[0].Index == 0 {
		p.NetDev = p.GIDs[0].NetDev
	}
	return p
}

// netdevOf finds the network device of a port among those of the PCI function.
func netdevOf(pci string, port int) string {
	entries, err := os.ReadDir(filepath.Join(pci, "net"))
	if err != nil {
		return ""
	}
	for _, e := range entries {
		if n, err := strconv.Atoi(value(pci, "net", e.Name(), "dev_port")); err == nil && n == port-1 {
			return e.Name()
		}
	}
	return ""
}

// hardwareID returns the pnetid of a port out of the utility string of an IBM Z
// PCI function: 16 characters a port, in EBCDIC.
func hardwareID(util []byte, port int) string {
	const size = 16
	if len(util) < port*size {
		return ""
	}
	var b strings.Builder
	for _, c := range util[(port-1)*size : port*size] {
		switch {
		case c >= 0xc1 && c <= 0xc9:
			b.WriteByte('A' + c - 0xc1)
		case c >= 0xd1 && c <= 0xd9:
			b.WriteByte('J' + c - 0xd1)
		case c >= 0xe2 && c <= 0xe9:
			b.WriteByte('S' + c - 0xe2)
		case c >= 0xf0 && c <= 0xf9:
			b.WriteByte('0' + c - 0xf0)
		case c == 0x40 || c == 0:
		default:
			return "" // not an identifier
		}
	}
	return b.String()
}
