// SPDX-License-Identifier: Apache-2.0

package active

import (
	"os"
	"strconv"
	"syscall"
)

// The variables of the environment that this package reads.
const (
	// Env has the number of the mutant that runs.
	Env = "SMCR_MUTANT"
	// ReachedEnv has the name of the file in which to note what is reached.
	ReachedEnv = "SMCR_MUTANTS_REACHED"
)

var (
	current = number(os.Getenv(Env))
	reached = mapped(os.Getenv(ReachedEnv))
)

// Is reports whether mutant n runs.
func Is(n int) bool { return In(n, n) != 0 }

// In returns the number of the mutant that runs if it is one of first to last, or 0.
func In(first, last int) int {
	if reached != nil {
		mark(first, last)
	}
	if current < first || current > last {
		return 0
	}
	return current
}

// mark notes that the place of some mutants was reached. Several threads may do it at
// once: they all write 1.
func mark(first, last int) {
	for n := first; n <= last && n < len(reached); n++ {
		reached[n] = 1
	}
}

// number returns the number of the mutant, 0 for none. A value that is no number is
// that of no mutant.
func number(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0
	}
	return n
}

// mapped maps the file in which to note what is reached. It is shared memory so that
// nothing is lost when the process dies, or starts others. A process that cannot map it
// ends: its tests would seem to reach nothing.
func mapped(name string) []byte {
	if name == "" {
		return nil
	}
	b, err := mapFile(name)
	if err != nil {
		panic("mutants: cannot note what is reached: " + err.Error())
	}
	return b
}

func mapFile(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close() // the mapping stays
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	return syscall.Mmap(int(f.Fd()), 0, int(st.Size()), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
}
