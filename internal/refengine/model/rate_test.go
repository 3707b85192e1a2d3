package model
import ("testing";"fmt";"os")
func TestRate(t *testing.T){
	if os.Getenv("EXP")=="" {t.Skip()}
	for _, nem := range []int{120,340,450} {
	tot,all:=0,0
	for seed := range 24 {
		var em []int32
		for i := range nem { em = append(em, int32(260+i)) }
		m := Tiny(uint64(seed), 800, em, []int32{300})
		n, e := 0, 0
		for s := range 6 {
			r := random{state: uint64(s)}
			prompt := make([]int32, 100)
			for i := range prompt { prompt[i]=int32(r.next()%800) }
			p := m.NewPool(40,16)
			for _, x := range gen(m,p,prompt,400) { n++; if x==300 {e++} }
		}
		fmt.Printf("%.0f ", float64(n)/float64(max(e,1)))
		tot+=e; all+=n
	}
	fmt.Printf("mean %.0f\n", float64(all)/float64(tot))
	}
}
