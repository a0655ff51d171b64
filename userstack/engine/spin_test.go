// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"testing"
	"time"
)

// gaps lets s live through gaps of these lengths and returns which of them it
// spun in, as '+' and '-'. Who spins sees the end of a gap at once, who sleeps
// needs wake more.
func (s *spinner) gaps(start time.Time, wake time.Duration, gaps ...time.Duration) (spun string) {
	now := start
	for _, gap := range gaps {
		s.begins(now)
		end := now.Add(gap)
		if s.spins(now) {
			spun += "+"
			for s.spins(now) && now.Before(end) {
				now = now.Add(time.Microsecond)
				s.begins(now) // within the gap
			}
		} else {
			spun += "-"
		}
		if now.Before(end) {
			now = end.Add(wake)
		}
		s.ends(func() time.Time { return now })
	}
	return spun
}

func TestSpinner(t *testing.T) {
	const short, long, wake = 150 * time.Microsecond, time.Millisecond, 100 * time.Microsecond
	repeat := func(n int, d time.Duration) (all []time.Duration) {
		for range n {
			all = append(all, d)
		}
		return all
	}
	for _, c := range []struct {
		name string
		most time.Duration
		wake time.Duration
		gaps []time.Duration
		want string
	}{
		{"never", 0, wake, repeat(4, short), "----"},
		{"what comes soon", DefaultSpin, wake, repeat(6, short), "++++++"},
		{"what comes late", DefaultSpin, wake, repeat(12, long), "+-+---+-----"},
		{"sooner, but the wake-ups are slow", DefaultSpin, wake, append(repeat(6, long), repeat(8, short)...), "+-+---++++++++"},
		{"sooner, and the wake-ups are quick", DefaultSpin, 0, append(repeat(4, long), repeat(3, short)...), "+-+--++"},
		{"one late among many", DefaultSpin, wake, append(append(repeat(2, short), long), repeat(4, short)...), "+++-+++"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := spinner{most: c.most}
			if got := s.gaps(time.Now(), c.wake, c.gaps...); got != c.want {
				t.Errorf("spun in %s, want %s", got, c.want)
			}
		})
	}
	t.Run("late for ever", func(t *testing.T) {
		s := spinner{most: DefaultSpin}
		n := 0
		for _, c := range s.gaps(time.Now(), 0, repeat(6400, long)...) {
			if c == '+' {
				n++
			}
		}
		if n < 90 || n > 110 {
			t.Errorf("%d of 6400 gaps began with a spin, want about one in 64", n)
		}
	})
	t.Run("crowded", func(t *testing.T) {
		s, now := spinner{most: DefaultSpin}, time.Now()
		s.yielded(now, now.Add(crowdedYield/2))
		if got := s.gaps(now, 0, short); got != "+" {
			t.Errorf("after a short yield: %s", got)
		}
		s.yielded(now, now.Add(crowdedYield+1))
		if got := s.gaps(now.Add(crowdedYield), 0, short, short); got != "--" {
			t.Errorf("after a long yield: %s", got)
		}
		if got := s.gaps(now.Add(2*crowdedFor), 0, short, short); got != "++" {
			t.Errorf("a while later: %s", got)
		}
	})
}
