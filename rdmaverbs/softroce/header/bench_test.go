// SPDX-License-Identifier: Apache-2.0

package header_test

import (
	"fmt"
	"testing"

	"smcr/rdmaverbs/softroce/header"
)

func TestNoAllocs(t *testing.T) {
	f := readHex(t)[10].frame
	var k header.Checker
	if n := testing.AllocsPerRun(100, func() {
		_, rest, _ := header.ParseEthernet(f)
		grh, data, _, _ := header.ParseV1(rest)
		_, _ = header.ParseTransport(data)
		k.V1(grh, data).Add(data[header.BTHLen:])
	}); n != 0 {
		t.Errorf("%v allocations a frame", n)
	}
}

func BenchmarkParseAndICRC(b *testing.B) {
	for _, n := range []int{44, 1024, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			grh := make(header.GRH, header.GRHLen)
			data := make([]byte, header.BTHLen+n)
			header.BTH(data).Encode(&header.BTHFields{Opcode: header.SendOnly})
			var k header.Checker
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := header.ParseTransport(data); err != nil {
					b.Fatal(err)
				}
				k.V1(grh, data).Add(data[header.BTHLen:])
			}
		})
	}
}

func BenchmarkSolveID(b *testing.B) {
	s := header.NewIDSolver()
	b.ReportAllocs()
	for b.Loop() {
		s.Solve(0x12345678, 0x9abcdef0, 1070)
	}
}
