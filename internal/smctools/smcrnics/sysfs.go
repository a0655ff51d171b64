// SPDX-License-Identifier: Apache-2.0

package smcrnics

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"smcr/nl"

	"golang.org/x/sys/unix"
)

// An FS reads a sysfs.
type FS struct {
	root     string
	firmware func(netdev string) string
}

// NewFS returns an FS for the sysfs mounted at root. The function firmware
// returns the firmware version of a network device, which sysfs does not have.
func NewFS(root string, firmware func(netdev string) string) FS { return FS{root, firmware} }

// Firmware returns the firmware version of a network device, from its driver, or "" if
// there is none.
func Firmware(netdev string) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, netdev)
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(info.Fw_version[:])
}

// Options select what List lists.
type Options struct {
	All   bool   // also devices that are off, and unknown ones
	IBDev bool   // by RoCE device, not by network device
	Raw   bool   // numbers, not names
	FID   string // only this function, in eight digits; "" for all
	PNETs func() []nl.PNET
}

func (fs FS) slot(fid string) string { return filepath.Join(fs.root, "bus/pci/slots", fid) }

// text returns the only line of a file, or "".
func text(path ...string) string {
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		return ""
	}
	return strings.TrimRight(string(b), "\n")
}

// names returns the names in a folder, in order.
func names(path ...string) []string {
	entries, err := os.ReadDir(filepath.Join(path...))
	if err != nil {
		return nil
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

// Power reports whether a function is on. The error means that it does not exist.
func (fs FS) Power(fid string) (bool, error) {
	b, err := os.ReadFile(filepath.Join(fs.slot(fid), "power"))
	return strings.TrimSpace(string(b)) == "1", err
}

// SetPower switches a function on or off.
func (fs FS) SetPower(fid string, on bool) error {
	value := "0"
	if on {
		value = "1"
	}
	return os.WriteFile(filepath.Join(fs.slot(fid), "power"), []byte(value+"\n"), 0)
}

// A line is the printed line of a port.
type line struct {
	fid                                              uint64
	power, address, pchid, kind, pft, vf, port, name string
	pnetids                                          []byte // util_string
}

// List returns the lines for the devices, sorted, and the functions that are on
// without a device.
func (fs FS) List(o Options) (lines, missing []string) {
	for _, slot := range names(fs.root, "bus/pci/slots") {
		if o.FID != "" && slot != o.FID {
			continue
		}
		fid, err := strconv.ParseUint(slot, 16, 64)
		if err != nil {
			continue // not a function of IBM Z
		}
		l := line{fid: fid, power: text(fs.slot(slot), "power")}
		if l.power == "0" {
			if o.All {
				lines = append(lines, l.format(o))
			}
			continue
		}
		for _, dev := range names(fs.root, "bus/pci/devices") {
			if text(fs.root, "bus/pci/devices", dev, "function_id") == "0x"+slot {
				l.address = dev
				break
			}
		}
		if l.address == "" {
			missing = append(missing, slot)
			continue
		}
		lines = append(lines, fs.device(l, o)...)
	}
	slices.Sort(lines)
	return lines, missing
}

// PCI function types (Linux, Documentation/arch/s390/pci.rst).
const (
	pftRoCE1 = 0x02
	pftISM   = 0x05
	pftRoCE2 = 0x0a // also the third generation
	pftNETH  = 0x0c
	pftNETD  = 0x0f
)

// device returns the lines for the ports of a device that is on.
func (fs FS) device(l line, o Options) []string {
	dir := filepath.Join(fs.root, "bus/pci/devices", l.address)
	l.kind = strings.TrimPrefix(text(dir, "vendor"), "0x") + ":" + strings.TrimPrefix(text(dir, "device"), "0x")
	l.pft = text(dir, "pft")
	pft, _ := strconv.ParseUint(l.pft, 0, 8)
	vfn, _ := strconv.ParseUint(strings.TrimPrefix(text(dir, "vfn"), "0x"), 16, 32)
	isVF := "n"
	if vfn != 0 {
		isVF = "y"
	}
	l.port = "n/a"
	netdevs := names(dir, "net")
	if o.Raw {
		l.vf = fmt.Sprint(vfn)
	} else {
		l.vf = "y"
		switch pft {
		case pftISM:
			l.kind, l.pft = "ISM", "ISM"
		case pftRoCE1:
			l.kind, l.pft = "RoCE_Express", "ROC"
		case pftRoCE2:
			l.kind, l.pft = "", "ROC2"
			if len(netdevs) > 0 {
				switch major, _, _ := strings.Cut(fs.firmware(netdevs[0]), "."); major {
				case "14":
					l.kind = "RoCE_Express2"
				case "22":
					l.kind = "RoCE_Express3"
				}
			}
			l.port = devicePort(dir, o)
		case pftNETH:
			l.kind, l.pft = "Network_Express", "NETH"
			l.port = devicePort(dir, o)
		case pftNETD:
			l.kind, l.pft, l.vf = "Network_Express", "NETD", isVF
			l.port = devicePort(dir, o)
		default:
			if !o.All {
				return nil
			}
			l.vf = isVF
		}
	}
	l.pchid = strings.TrimPrefix(text(dir, "pchid"), "0x")
	l.pnetids, _ = os.ReadFile(filepath.Join(dir, "util_string"))
	l.name = "n/a"
	var lines []string
	if o.IBDev {
		devs := names(dir, "infiniband")
		if len(devs) == 0 {
			return []string{l.format(o)}
		}
		l.name = devs[0] // one RoCE device for each card
		for _, l.port = range names(dir, "infiniband", l.name, "ports") {
			lines = append(lines, l.format(o))
		}
		return lines
	}
	for _, l.name = range netdevs {
		l.port = devicePort(dir, o)
		if p := text(dir, "net", l.name, "dev_port"); pft == pftRoCE1 && p != "" {
			l.port = p
		}
		lines = append(lines, l.format(o))
	}
	if len(netdevs) == 0 {
		return []string{l.format(o)}
	}
	return lines
}

// devicePort returns the port of a card that has one device for each port. It is counted
// from 0 for network devices, and always 1 for RoCE devices.
func devicePort(dir string, o Options) string {
	n, err := strconv.Atoi(text(dir, "port"))
	switch {
	case err != nil || n == 0:
		return "n/a"
	case o.IBDev:
		return "1"
	}
	return strconv.Itoa(n - 1)
}

func (l line) format(o Options) string {
	return fmt.Sprintf("%4x  %-5s  %-12s  %-4s   %-15s  %-4s  %-3s  %-4s  %-17s  %s",
		l.fid, l.power, l.address, l.pchid, l.kind, l.pft, l.vf, l.port, l.pnetid(o), l.name)
}

// pnetid returns the pnetid of the port: that of the hardware, or one that a
// user gave with a star after it.
func (l line) pnetid(o Options) string {
	if l.port == "" {
		return ""
	}
	port := 0 // only the first generation has two ports with one function
	if n, err := strconv.Atoi(l.port); err == nil && l.kind == "RoCE_Express" {
		port = n
		if o.IBDev {
			port--
		}
	}
	id := PNETID(l.pnetids, port)
	if id == "" {
		id = o.softPNETID(l.name, l.address, port+1)
	}
	return id
}

// PNETID returns the pnetid of a port from utilString, which has the pnetids of all
// ports of an adapter: 16 characters of code page 1047 for each port.
func PNETID(utilString []byte, port int) string {
	ids := fromEBCDIC(utilString)
	begin := 16 * port
	if begin < 0 || begin >= len(ids) {
		return ""
	}
	return strings.ReplaceAll(ids[begin:min(begin+16, len(ids))], " ", "")
}

// fromEBCDIC decodes letters and digits of code page 1047, the encoding of pnetids in
// the machine. Other characters become blanks.
func fromEBCDIC(b []byte) string {
	out := make([]byte, len(b))
	for i, c := range b {
		out[i] = ' '
		for _, r := range []struct{ first, last, to byte }{
			{0x81, 0x89, 'a'}, {0x91, 0x99, 'j'}, {0xa2, 0xa9, 's'},
			{0xc1, 0xc9, 'A'}, {0xd1, 0xd9, 'J'}, {0xe2, 0xe9, 'S'}, {0xf0, 0xf9, '0'},
		} {
			if c >= r.first && c <= r.last {
				out[i] = r.to + c - r.first
			}
		}
	}
	return string(out)
}
