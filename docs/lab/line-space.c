// Simulation behind docs/lab/line.md, "Space": how much space a growing table of the scheme `line` takes, how
// many lines lookups read, and how many records a rebuild moves, for several ways to grow.
//   gcc -O2 -march=native -o line-space line-space.c -lm
//   nice -n 10 ./line-space            every row, scaled; "./line-space 6 full": row 6 with 1 to 20 million records;
//   "./line-space 6 churn": row 6, and then removals and inserts at a constant number of records
//   ("churn 26": with compaction when more than 26 records of 8 blocks are away from home)
// One run grows a table from N0 to N1 records. Segments are independent of each other, so a sixteenth of
// 1 to 20 million records shows the same averages.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <time.h>
typedef uint64_t u64; typedef uint32_t u32;
#define SLOTS 4
#define TOPBITS 16
typedef struct { u64 *s; u32 n; } Seg;              // lines*4 slots: the hash of the record, or 0
typedef struct { int p; u64 idx; int k; Seg seg[16]; } Group;
static struct Cfg { const char*name; int lines, stash, window, kmin, kmax; int reach; double cap_lo, cap_hi; int emptiest; } C;
static Group *dir[1<<TOPBITS]; static u64 rng=1; static u64 moved, rebuilds, live, high, stashed_fail; static double trig_sum; static u64 trig_n;
static u64 rnd(void){ u64 z=(rng+=0x9e3779b97f4a7c15ull); z=(z^z>>30)*0xbf58476d1ce4e5b9ull; z=(z^z>>27)*0x94d049bb133111ebull; return z^z>>31; }
static int homes(void){ return C.lines-1-C.stash; }
static Seg newseg(void){ Seg s; s.s=calloc(C.lines*SLOTS,8); s.n=0; if(++live>high)high=live; return s; }
static void freeseg(Seg*s){ free(s->s); live--; }
static u32 home(u64 h){ return (u32)(((h&0xffffffffu)*(u64)homes())>>32); }
static u64*slot_in(Seg*s,int line){ u64*l=s->s+line*SLOTS; for(int i=0;i<SLOTS;i++)if(!l[i])return l+i; return 0; }
// order of the other lines of the block: the pair line first
static int other(int l,int i){ return C.reach==3? (l^i) : (l/8*8)+((l%8)^i); }
static int place(Seg*s,u64 h,int far){ int l=home(h); u64*p=slot_in(s,l); if(p){*p=h;s->n++;return 1;} if(!far)return 0;
  int best=-1,room=0; for(int i=1;i<=C.reach;i++){ int o=other(l,i),f=0; if(o>=homes())continue; for(int k=0;k<SLOTS;k++)f+=!s->s[o*SLOTS+k]; if(f>room){room=f;best=o;if(!C.emptiest)break;} }
  if(best>=0){ p=slot_in(s,best); *p=h;s->n++;return 1; }
  if(C.stash){ int st=(h>>2)%C.stash; for(int i=0;i<C.window&&i<C.stash;i++){ p=slot_in(s,homes()+(st+i)%C.stash); if(p){*p=h;s->n++;return 1;} } }
  return 0; }
static Group*group_of(u64 h){ return dir[h>>(64-TOPBITS)]; }
static int part(Group*g,u64 h){ u64 rest=g->p?h<<g->p:h; return (int)(((rest>>32)*(u64)g->k)>>32); }
static void put_dir(Group*g){ u64 n=1ull<<(TOPBITS-g->p); for(u64 i=0;i<n;i++)dir[g->idx*n+i]=g; }
static Group*mk(int p,u64 idx,int k){ Group*g=malloc(sizeof*g); g->p=p;g->idx=idx;g->k=k; for(int i=0;i<k;i++)g->seg[i]=newseg(); return g; }
static double cap_of(Group*g){ u64 x=(g->idx+1)*0x9e3779b97f4a7c15ull^(u64)g->p*0xd6e8feb86659fd93ull; x^=x>>29; x*=0xbf58476d1ce4e5b9ull; x^=x>>32; return C.cap_lo+(C.cap_hi-C.cap_lo)*((x&0xffff)/65536.0); }
static void rebuild_to(Group*g,int same){ static u64 buf[1<<18]; u64 n=0; rebuilds++;
  for(int j=0;j<g->k;j++)for(int i=0;i<C.lines*SLOTS;i++)if(g->seg[j].s[i])buf[n++]=g->seg[j].s[i];
  moved+=n; if(!same)trig_sum+=(double)n/(g->k*C.lines*SLOTS); if(!same)trig_n++;
  Group*t[2]; int nt; int k=g->k;
  if(same){ t[0]=mk(g->p,g->idx,k); nt=1; } else if(k<C.kmax){ t[0]=mk(g->p,g->idx,k+1); nt=1; }
  else { int half=(C.kmax+1)/2; t[0]=mk(g->p+1,g->idx*2,half); t[1]=mk(g->p+1,g->idx*2+1,half); nt=2; }
  static u64 late[1<<18]; u64 nl=0;
  for(u64 i=0;i<n;i++){ Group*x=nt==1?t[0]:t[(buf[i]>>(63-g->p))&1]; if(!place(&x->seg[part(x,buf[i])],buf[i],0))late[nl++]=buf[i]; }
  for(u64 i=0;i<nl;i++){ Group*x=nt==1?t[0]:t[(late[i]>>(63-g->p))&1]; if(!place(&x->seg[part(x,late[i])],late[i],1))stashed_fail++; }
  for(int j=0;j<k;j++)freeseg(&g->seg[j]);
  for(int i=0;i<nt;i++)put_dir(t[i]); free(g); }
static void rebuild(Group*g){ rebuild_to(g,0); }
// Compaction: an insert that leaves its home line looks, one time in 32, at the 8 blocks whose hints share a line. If more than
// `tidy` of their records are away from home, the group is rebuilt in its present size.
static int tidy=1000; static u64 tidied; static int away8(Seg*s,int x){ int b=x/32*32,a=0,H=homes(); for(int l=b;l<b+32&&l<H;l++)for(int i=0;i<SLOTS;i++){ u64 h=s->s[l*SLOTS+i]; if(h&&(int)home(h)!=l)a++; } return a; }
static void insert(u64 h){ for(;;){ Group*g=group_of(h); Seg*s=&g->seg[part(g,h)];
    if(C.cap_hi<1 && s->n >= cap_of(g)*C.lines*SLOTS){ rebuild(g); continue; }
    int full=!slot_in(s,home(h)); if(place(s,h,1)){ if(full&&(h>>40&31)==0&&away8(s,home(h))>tidy){ tidied++; rebuild_to(g,1); } return; } rebuild(g); } }
// What lookups read, over a sample of the segments. Three kinds of hints: one byte a line (4 classes "in the block", 4 "in
// the stash"); two bytes (4 classes x 3 lines, 4 "in the stash"); and the hint word of the design: a list of LIST entries a
// block of four lines: home, where (one of 3 lines, or one of 4 pairs of stash lines), 4 bits of tag. Stash records come
// first. A record that is not listed sets one of two flags of its home: 1 in the block, 2 in the stash.
#define LIST 6
#define TAGS 15
#define WPER (C.window<=4?1:2)
typedef struct { double h1,m1,h2,m2,h3,m3,away,st,flag; } Look;
static Look lookups(int every){ Look L={0}; double n=0,miss=0; int H=homes(); Group*last=0; int seen=0;
  for(int d=0;d<(1<<TOPBITS);d++){ Group*g=dir[d]; if(g==last)continue; last=g; if(seen++%every)continue;
   for(int j=0;j<g->k;j++){ Seg*s=&g->seg[j]; static uint8_t b1[4096]; static uint16_t b2[4096]; static u32 ent[1024][LIST]; static int cnt[1024]; static uint8_t unl[4096];
    memset(b1,0,sizeof b1);memset(b2,0,sizeof b2);memset(cnt,0,sizeof cnt);memset(unl,0,sizeof unl);
    for(int l=C.lines-2;l>=0;l--)for(int i=0;i<SLOTS;i++){ u64 h=s->s[l*SLOTS+i]; if(!h)continue; int x=home(h),c=h&3,tag=h>>3&TAGS,where; if(l==x)continue;
      if(l>=H){ b1[x]|=16<<c; b2[x]|=1<<(12+c); int st=(h>>2)%C.stash; where=4+((l-H-st+C.stash)%C.stash)/WPER%4; } else { b1[x]|=1<<c; int o=1; for(;o<=C.reach;o++)if(other(x,o)==l)break; b2[x]|=1<<(c*3+(o-1)%3); where=o; }
      if(cnt[x/4]<LIST)ent[x/4][cnt[x/4]++]=x<<16|where<<8|tag; else unl[x]|=l>=H?2:1; }
    for(int x=0;x<H;x++)L.flag+=!!unl[x]/(double)H/g->k;
    #define PROBE(x,c,tag,start,l,r1,r2,r3) do{ double A=1,B=1,D=1; int f1=0,f2=0,f3=0; if((l)!=(x)){ \
      if(b1[x]>>(c)&1) for(int o=1;o<=C.reach&&!f1;o++){ int q=other(x,o); if(q>=H)continue; A++; if(q==(l))f1=1; } \
      for(int o=1;o<=C.reach&&!f2;o++){ int q=other(x,o); if(q>=H)continue; if(b2[x]>>((c)*3+(o-1)%3)&1){ B++; if(q==(l))f2=1; } } \
      if(!f1&&b1[x]>>(4+(c))&1) for(int w=0;w<C.window&&w<C.stash&&!f1;w++){ A++; if(H+((start)+w)%C.stash==(l))f1=1; } \
      if(!f2&&b2[x]>>(12+(c))&1) for(int w=0;w<C.window&&w<C.stash&&!f2;w++){ B++; if(H+((start)+w)%C.stash==(l))f2=1; } \
      for(int e=0;e<cnt[(x)/4]&&!f3;e++){ u32 E=ent[(x)/4][e]; if((int)(E>>16)!=(x)||(int)(E&31)!=(tag))continue; int wh=E>>8&255; if(wh<4){ D++; if(other(x,wh)==(l))f3=1; } else for(int w=0;w<WPER&&!f3;w++){ D++; if(H+((start)+WPER*(wh-4)+w)%C.stash==(l))f3=1; } } \
      if(!f3&&unl[x]){ if(unl[x]&1)for(int o=1;o<=C.reach&&!f3;o++){ int q=other(x,o); if(q>=H)continue; D++; if(q==(l))f3=1; } if(unl[x]&2)for(int w=0;w<C.window&&w<C.stash&&!f3;w++){ D++; if(H+((start)+w)%C.stash==(l))f3=1; } } \
      } r1=A;r2=B;r3=D; }while(0)
    for(int l=0;l<C.lines-1;l++)for(int i=0;i<SLOTS;i++){ u64 h=s->s[l*SLOTS+i]; if(!h)continue; int x=home(h),c=h&3,tag=h>>3&TAGS; double p,q,r; int start=C.stash?(int)((h>>2)%C.stash):0; PROBE(x,c,tag,start,l,p,q,r); L.h1+=p;L.h2+=q;L.h3+=r;n++; L.away+=l!=x; L.st+=l>=H; }
    for(int x=0;x<H;x++)for(int c=0;c<8;c++){ double p,q,r; u64 h=rnd(); int start=C.stash?(int)((h>>2)%C.stash):0; PROBE(x,(int)(h&3),(int)(h>>3&TAGS),start,-1,p,q,r); L.m1+=p;L.m2+=q;L.m3+=r;miss++; } } }
  double gr=(seen+every-1)/every; L.h1/=n;L.h2/=n;L.h3/=n;L.m1/=miss;L.m2/=miss;L.m3/=miss;L.away/=n;L.st/=n;L.flag/=gr; return L; }
static u64 N0=62500,N1=1250000,SCALE=16; static int churn;
static void run(struct Cfg c){ C=c; rng=12345; moved=rebuilds=live=high=stashed_fail=0; trig_sum=0;trig_n=0;
  u64 n=0; int p0=SCALE==16?3:6; for(u64 i=0;i<(1ull<<p0);i++)put_dir(mk(p0,i,c.kmin));
  double sb=0,mb=0,minb=1e9,loads=0; Look S={0},W={0}; int ns=0; u64 m0=0,next=N0,r0=0; clock_t t0=clock();
  #define ADD(f) S.f+=k.f; if(k.f>W.f)W.f=k.f;
  while(n<N1){ insert(rnd()|1); n++; if(n==N0){m0=moved;r0=rebuilds;} if(n>=N0&&n>=next){ next=n+(N1-N0)/120;
     // the blocks in use, four more of a rebuild under way, 8 bytes of hints a block of four lines, and the directory: about 3.6
     // words a segment in PM and twice as much in DRAM
     double bytes=((live+4.0/SCALE)*(C.lines*64.0+C.lines*2.0)+live*3.6*24.0)/n;
     sb+=bytes; if(bytes>mb)mb=bytes; if(bytes<minb)minb=bytes; ns++; loads+=n/(live*C.lines*4.0);
     Look k=lookups(SCALE==16?3:48); ADD(h1)ADD(m1)ADD(h2)ADD(m2)ADD(h3)ADD(m3)ADD(away)ADD(st)ADD(flag) } }
  printf("%-36s %5.1f %5.1f %5.1f | %4.2f %4.2f %4.2f | %4.2f %4.2f | %4.2f %4.2f | %5.3f %5.3f %5.3f %5.3f | %4.1f%% %4.1f%% %4.2f%% | %4.2f%% | %llu %4.1fs\n",C.name,sb/ns,minb,mb,(double)(moved-m0)/(N1-N0),loads/ns,trig_sum/trig_n,S.h1/ns,S.m1/ns,S.h2/ns,S.m2/ns,S.h3/ns,W.h3,S.m3/ns,W.m3,100*S.away/ns,100*W.away,100*S.st/ns,100*W.flag,(unsigned long long)stashed_fail,(double)(clock()-t0)/CLOCKS_PER_SEC); fflush(stdout);
  if(churn){ // removals and inserts of random keys at a constant number of records
    static u64*all; static u64 na; all=malloc(8*(n+16)); na=0; Group*last=0; for(int d=0;d<(1<<TOPBITS);d++)if(dir[d]!=last){ last=dir[d]; for(int j=0;j<last->k;j++)for(int i=0;i<C.lines*SLOTS;i++)if(last->seg[j].s[i])all[na++]=last->seg[j].s[i]; }
    for(int round=1;round<=8;round++){ u64 mm=moved; for(u64 q=0;q<na;q++){ u64 at=rnd()%na,h=all[at]; Group*g=group_of(h); Seg*s=&g->seg[part(g,h)]; int done=0; int x=home(h); for(int o=0;o<=C.reach&&!done;o++){ int l=other(x,o); if(l>=homes())continue; for(int i=0;i<SLOTS;i++)if(s->s[l*SLOTS+i]==h){s->s[l*SLOTS+i]=0;done=1;break;} }
        for(int l=homes();l<C.lines-1&&!done;l++)for(int i=0;i<SLOTS;i++)if(s->s[l*SLOTS+i]==h){s->s[l*SLOTS+i]=0;done=1;break;} if(!done)abort(); s->n--; u64 nh=rnd()|1; all[at]=nh; insert(nh); }
      Look k=lookups(3); if(round==1||round==2||round==4||round==8)printf("   churn of %d times the records: load %.2f, away %.1f%%, hit %.3f miss %.3f, flagged %.2f%%, moved %.2f, compactions so far %llu of %llu rebuilds\n",round,na/(live*C.lines*4.0),100*k.away,k.h3,k.m3,100*k.flag,(double)(moved-mm)/na,(unsigned long long)tidied,(unsigned long long)rebuilds); } free(all); }
  Group*last=0; for(int d=0;d<(1<<TOPBITS);d++)if(dir[d]!=last){ last=dir[d]; for(int j=0;j<last->k;j++)freeseg(&last->seg[j]); } }
int main(int argc,char**argv){
  printf("%-36s bytes a record    | moved load trig | one byte  | two bytes | list: hit, worst, miss, worst | away, worst, stash  | flags | failed\n%-36s avg   min   max\n","","");
  struct Cfg t[]={
   {"plain 32K, stash 31 w8",             512,31, 8,1,1,3,1,1,0},
   {"plain 68K, stash 64 w8 (prototype)",1089,64, 8,1,1,3,1,1,0},
   {"plain 32K, splits at 0.65 to 0.9",   512,31, 8,1,1,3,.65,.9,0},
   {"2,3 x 32K, stash 7 w7",              512, 7, 7,2,3,3,1,1,0},
   {"2,3 x 32K, stash 15 w8",             512,15, 8,2,3,3,1,1,0},
   {"2,3 x 32K, stash 31 w4",             512,31, 4,2,3,3,1,1,0},
   {"2,3 x 32K, stash 31 w8",             512,31, 8,2,3,3,1,1,0},
   {"2,3 x 32K, stash 31 w31",            512,31,31,2,3,3,1,1,0},
   {"2,3 x 32K, stash 47 w8",             512,47, 8,2,3,3,1,1,0},
   {"2,3 x 64K, stash 63 w8",            1024,63, 8,2,3,3,1,1,0},
   {"2,3 x 16K, stash 15 w8",             256,15, 8,2,3,3,1,1,0},
   {"2,3 x 32K, stash 31 w8, at 0.75",    512,31, 8,2,3,3,.75,.75,0},
   {"2,3 x 32K, stash 39 w4",             512,39, 4,2,3,3,1,1,0},
   {"2,3 x 32K, stash 47 w4",             512,47, 4,2,3,3,1,1,0},
   {"2,3 x 32K, stash 63 w4",             512,63, 4,2,3,3,1,1,0},
   {"2,3 x 32K, stash 31 w4, emptiest",   512,31, 4,2,3,3,1,1,1},
   {"2,3 x 32K, stash 39 w4, emptiest",   512,39, 4,2,3,3,1,1,1},
   {"2,3 x 32K, stash 47 w4, emptiest",   512,47, 4,2,3,3,1,1,1},
   {"2,3 x 32K, stash 31 w8, emptiest",   512,31, 8,2,3,3,1,1,1},
   {"2,3 x 32K, stash 35 w8, emptiest",   512,35, 8,2,3,3,1,1,1},
   {"2,3 x 32K, stash 39 w8, emptiest",   512,39, 8,2,3,3,1,1,1},
   {"plain 32K, stash 39 w8, emptiest",   512,39, 8,1,1,3,1,1,1},
   {"2,3 x 32K, stash 15 w8, emptiest",   512,15, 8,2,3,3,1,1,1},
   {"3,4,5 x 32K, stash 31 w4, emptiest", 512,31, 4,3,5,3,1,1,1},
   {"3,4,5 x 32K, stash 31 w4",           512,31, 4,3,5,3,1,1,0},
   {"3,4,5 x 32K, stash 23 w4",           512,23, 4,3,5,3,1,1,0},
   {"3,4,5 x 32K, stash 31 w8",           512,31, 8,3,5,3,1,1,0},
   {"3,4,5 x 32K, at 0.80",               512,31, 8,3,5,3,.8,.8,0},
   {"4-7 x 32K, at 0.75",                 512,31, 8,4,7,3,.75,.75,0},
   {"4-7 x 32K, at 0.80",                 512,31, 8,4,7,3,.8,.8,0},
  };
  if(argc>2&&argv[2][0]=='f'){ N0=1000000;N1=20000000;SCALE=1; } if(argc>2&&argv[2][0]=='c')churn=1; if(argc>3)tidy=atoi(argv[3]);
  for(unsigned i=0;i<sizeof t/sizeof*t;i++)if(argc<2||i==(unsigned)atoi(argv[1]))run(t[i]); }
