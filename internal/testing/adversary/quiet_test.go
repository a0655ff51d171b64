package adversary

import (
	"testing"

	"smcr/userstack"
)

func TestQuiet(t *testing.T) {
	for name, cfg := range map[string]userstack.Config{"v2": {}, "v1": {NoVersion2: true}} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, cfg)
			t.Logf("%+v", l.A.groups(t, nil))
			if name == "v2" {
			p, err := l.C.Join(t.Context(), l.B.address(), eid)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			t.Logf("%+v layout %v", p.Victim, p.Layout)
			t.Logf("%+v", l.B.groups(t, nil))
			}
			l.unharmed()
		})
	}
}
