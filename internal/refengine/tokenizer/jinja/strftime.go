package jinja

import (
	"fmt"
	"strings"
	"time"
)

// strftime formats now as Python's datetime.strftime does, with the conversions that templates use.
// An unknown one is kept as it is.
func strftime(now time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 >= len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		pad := "%02d"
		if format[i] == '-' && i+1 < len(format) { // no padding, a GNU extension
			i++
			pad = "%d"
		}
		hour12 := (now.Hour()+11)%12 + 1
		switch format[i] {
		case 'Y':
			fmt.Fprintf(&b, "%04d", now.Year())
		case 'y':
			fmt.Fprintf(&b, pad, now.Year()%100)
		case 'm':
			fmt.Fprintf(&b, pad, int(now.Month()))
		case 'd':
			fmt.Fprintf(&b, pad, now.Day())
		case 'e':
			fmt.Fprintf(&b, "%2d", now.Day())
		case 'H':
			fmt.Fprintf(&b, pad, now.Hour())
		case 'I':
			fmt.Fprintf(&b, pad, hour12)
		case 'M':
			fmt.Fprintf(&b, pad, now.Minute())
		case 'S':
			fmt.Fprintf(&b, pad, now.Second())
		case 'f':
			fmt.Fprintf(&b, "%06d", now.Nanosecond()/1000)
		case 'j':
			fmt.Fprintf(&b, "%03d", now.YearDay())
		case 'B':
			b.WriteString(now.Month().String())
		case 'b', 'h':
			b.WriteString(now.Month().String()[:3])
		case 'A':
			b.WriteString(now.Weekday().String())
		case 'a':
			b.WriteString(now.Weekday().String()[:3])
		case 'p':
			b.WriteString(now.Format("PM"))
		case 'F':
			b.WriteString(now.Format("2006-01-02"))
		case 'T':
			b.WriteString(now.Format("15:04:05"))
		case 'D':
			b.WriteString(now.Format("01/02/06"))
		case 'z', 'Z': // datetime.now() has no zone
		case '%':
			b.WriteByte('%')
		default:
			b.WriteByte('%')
			b.WriteByte(format[i])
		}
	}
	return b.String()
}
