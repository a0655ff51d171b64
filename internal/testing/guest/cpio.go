// SPDX-License-Identifier: Apache-2.0

package guest

import "fmt"

// Modes of files in an archive, see stat(2).
const (
	modeDir     = 0o040755
	modeFile    = 0o100644
	modeProgram = 0o100755
	modeChar    = 0o020600
)

// An archive is a cpio archive in the "newc" form, which the kernel unpacks as its
// initial file system (kernel documentation, "initramfs buffer format"): thirteen numbers
// of eight hexadecimal digits, then name and data, each padded to four bytes.
type archive struct {
	b     []byte
	inode int
}

func newArchive() *archive { return &archive{} }

func (a *archive) entry(name string, mode, major, minor int, data []byte) {
	a.inode++
	a.b = append(a.b, "070701"...)
	for _, v := range []int{
		a.inode, mode, 0, 0, 1, 0, len(data),
		0, 0, major, minor, len(name) + 1, 0,
	} {
		a.b = fmt.Appendf(a.b, "%08X", v)
	}
	a.b = append(a.b, name...)
	a.b = append(a.b, 0)
	a.pad()
	a.b = append(a.b, data...)
	a.pad()
}

func (a *archive) pad() {
	for len(a.b)%4 != 0 {
		a.b = append(a.b, 0)
	}
}

// add adds a file or a directory. A directory must be added before its files.
func (a *archive) add(name string, mode int, data []byte) { a.entry(name, mode, 0, 0, data) }

// addConsole adds the console, which is character device 5:1.
func (a *archive) addConsole(name string) { a.entry(name, modeChar, 5, 1, nil) }

// finish completes the archive and returns it.
func (a *archive) finish() []byte {
	a.inode = -1 // the next entry has number 0
	a.entry("TRAILER!!!", 0, 0, 0, nil)
	return a.b
}
