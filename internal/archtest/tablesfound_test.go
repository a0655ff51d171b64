// SPDX-License-Identifier: Apache-2.0

package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"testing"
)

// TestTablesFound checks what tablesOf finds.
func TestTablesFound(t *testing.T) {
	const source = `package p
type s struct {
	users   map[int]string
	list    []int
	short   []int          // nothing is appended
	buffer  []byte
	ring    [8]int
	both    [2]map[int]int
	named   named
	inner   struct{ rows []int }
	of      other
	all     sync.Map
	now     atomic.Pointer[named]
	fixed   *fixed
	rows2   [][]int           // an element grows
	helped  []int             // a function of the package returns more
	given   []int             // a function gets a pointer
	sorted  []int             // a function gets it, and returns nothing
	joined  []int             // it becomes two lists
	queue   queue             // its type has a method that adds to it
	foreign other.Queue[int]  // as that of another package
	stack   fifo              // its type has none
	large   chan int
	many    chan int
	signal  chan struct{}
	next    *s
	beside  *other.s
	outer   pointed
}
type queue []int
func (q *queue) push(x int) { *q = append(*q, x) }
type fifo []int
func (q fifo) top() int { return q[0] }
type pointed struct{ up *pointed }
type named map[int]int
type fixed [4]int
type other struct{ m map[int]int }
var seen = map[int]bool{}
var constants = map[int]bool{1: true}
var lines []string
func (x *s) f() {
	x.list = append(x.list, 1)
	x.buffer = append(x.buffer[:0], 1)
	x.inner.rows = slices.Insert(x.inner.rows, 0, 1)
	x.rows2[0] = append(x.rows2[0], 1)
	x.helped = longer(x.helped, 1)
	read(&x.given)
	slices.Sort(x.sorted)
	swap(&x.short[0])
	x.joined = slices.Concat(a, b)
	x.large = make(chan int, 1000)
	x.signal = make(chan struct{}, 1)
	y := s{many: make(chan int, size)}
	seen[1] = true
	lines = append(lines, "")
	known, short := map[int]int{}, map[int]int{}
	var heard []int
	said := []string{}
	for {
		heard = append(heard, 1)
		said[0] = "x"
		known[1]++
		within := map[int]int{}
		within[2] = 3
	}
	for short[1] == 0 {
		short[2] = 5
	}
	ebpf.NewMap(&ebpf.MapSpec{Name: "smcr_map"})
}
`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"f.heard", "f.known", "lines", "other.m", "pointed.up", "s.all", "s.both", "s.foreign", "s.given", "s.helped", "s.joined", "s.large", "s.list", "s.many", "s.named", "s.next", "s.now", "s.queue", "s.rows", "s.rows2", "s.users", "seen", "smcr_map"}
	if got := slices.Sorted(maps.Keys(tablesOf([]*ast.File{f}, map[string]bool{"other.Queue": true}))); !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	const programs = `struct flow_table flows SEC(".maps");
struct { __uint(type, BPF_MAP_TYPE_ARRAY); } earlier SEC(".maps"); /* of others */
  struct { __uint(x, 1); } inner SEC(".maps");
`
	var names []string
	for _, m := range bpfMap.FindAllStringSubmatch(programs, -1) {
		names = append(names, m[1])
	}
	if !slices.Equal(names, []string{"flows", "earlier", "inner"}) {
		t.Errorf("maps %v", names)
	}
}
